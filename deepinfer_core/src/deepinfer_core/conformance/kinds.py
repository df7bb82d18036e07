"""Kinds of plugins that the kit judges, and the levels at which it does."""

from __future__ import annotations

from pathlib import Path

KINDS = ("backend", "model", "sampler", "logits_filter", "grammar", "scorer", "extension")
COMMON = "common"
"""Folder of the tests of every kind."""
LEVELS = ("smoke", "core", "full")
DEFAULT_LEVEL = "core"
KIT = Path(__file__).resolve().parent


def option_of(kind: str) -> str:
    """``--logits-filter`` for ``logits_filter``."""
    return "--" + kind.replace("_", "-")


def option_names() -> str:
    """The options that name a plugin, for a message."""
    return ", ".join(option_of(kind) for kind in KINDS)
