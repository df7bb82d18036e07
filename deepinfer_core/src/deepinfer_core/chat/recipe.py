"""The library ``deepseek-recipe``, imported when a conversation needs it."""

from __future__ import annotations

from typing import Any

from deepinfer_core.errors import LibraryMissing

MODEL = "DeepSeek-V4.1-Flash"
"""The name under which the library knows the V4.1 encoding."""


def recipe() -> Any:
    """The module ``deepseek_recipe``. Raises LibraryMissing where it is not installed, or cannot be loaded."""
    try:
        import deepseek_recipe  # 12 MB of compiled code, of use to chats only
    except ImportError as err:
        raise LibraryMissing(
            "chat needs the package deepseek-recipe",
            reason=str(err),
            remedy="pip install 'deepinfer-core[chat]'",
            details={"package": "deepseek-recipe"},
        ) from err
    return deepseek_recipe
