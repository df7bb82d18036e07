"""The hook of the grammar engine ``xgrammar``. The library, and with it torch, is imported when an engine is made."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer_core import hookimpl
from deepinfer_core.errors import PluginMissing, VendorImportError
from deepinfer_core.types import DoctorCheck

if TYPE_CHECKING:
    from deepinfer_core.interfaces import GrammarEngine
    from deepinfer_core.text.tokenizer import Tokenizer

NAME = "xgrammar"
CACHE_BYTES = 256 * 2**20
"""What the library keeps of compiled parts. Whole grammars are kept by the core, which knows who uses them."""


@hookimpl
def deepinfer_grammar_create(name: str, tokenizer: Tokenizer, vocab_size: int) -> GrammarEngine:
    """The engine ``xgrammar`` for one tokenizer and width of the logits.

    :raises PluginMissing: ``name`` is not a grammar engine of this plugin.
    :raises VendorImportError: the library is not installed, or cannot be used.
    """
    if name != NAME:
        raise PluginMissing(
            f"no grammar engine named {name!r} in deepinfer-samplers",
            reason=f"it provides: {NAME}",
            remedy=f"use {NAME!r}, or install the plugin that provides {name!r}",
        )
    from deepinfer_samplers.grammars.xgrammar_engine import XGrammarEngine  # imports xgrammar and torch

    return XGrammarEngine(tokenizer, vocab_size, CACHE_BYTES)


@hookimpl
def deepinfer_doctor_checks() -> Sequence[DoctorCheck]:
    """Whether the library is there, of a version that was tested, and can be imported."""
    from importlib import metadata

    from deepinfer_samplers.grammars.library import load

    try:
        module = load()
    except VendorImportError as err:
        return [DoctorCheck("library", "problem", err.what, reason=err.reason, remedy=err.remedy)]
    return [DoctorCheck("library", "ok", f"xgrammar {metadata.version('xgrammar')}, {module.__file__}")]
