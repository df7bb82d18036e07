"""The library ``xgrammar``, imported when the first grammar is compiled, and what it may cost to have it.

It requires triton (1 GB) and transformers, and uses neither here: triton is for masks on a GPU, which the sampler
applies itself, and transformers only lends two class names to its modules. It runs without both.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from importlib import metadata
from types import ModuleType
from typing import Any

from deepinfer_core.errors import VendorImportError

LEAST, BELOW = (0, 2, 8), (0, 3)
INSTALL = (
    "pip install --no-deps -r requirements-xgrammar.txt in a clone, which leaves out triton (1 GB) and transformers; "
    "pip install 'deepinfer-samplers[xgrammar]' brings them too"
)
_NEEDED = {
    "TokenizerInfo": ("vocab_size",),
    "GrammarCompiler": ("compile_json_schema", "compile_regex", "compile_grammar", "compile_structural_tag"),
    "GrammarMatcher": ("accept_token", "fill_next_token_bitmask", "rollback", "is_terminated"),
    "VocabType": ("RAW",),
}
_lock = threading.Lock()


def load() -> Any:
    """The module ``xgrammar``.

    :raises VendorImportError: it is not installed, cannot be imported, or is of a version that was not tested.
    """
    with _lock:  # worker threads ask at the same time, and the stand-in below is visible to all of them
        try:
            version = metadata.version("xgrammar")
        except metadata.PackageNotFoundError:
            raise VendorImportError(
                "structured output needs the library xgrammar, which is not installed", remedy=INSTALL
            ) from None
        _check_version(version)
        try:
            module = _imported()
        except Exception as err:  # a native library: missing symbols and files are reported in many ways
            raise VendorImportError(f"xgrammar {version} cannot be imported", reason=str(err), remedy=INSTALL) from err
    missing = [
        f"{name}.{part}"
        for name, parts in _NEEDED.items()
        for part in parts
        if not hasattr(getattr(module, name, None), part)
    ]
    if missing:
        raise VendorImportError(
            f"xgrammar {version} lacks {', '.join(missing)}", reason="it is not the library this was written for",
            remedy=f"pip install --no-deps xgrammar=={'.'.join(map(str, LEAST))}",
        )  # fmt: skip
    return module


def _check_version(version: str) -> None:
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if not numbers >= LEAST or numbers[: len(BELOW)] >= BELOW:
        least, below = (".".join(map(str, v)) for v in (LEAST, BELOW))
        raise VendorImportError(
            f"xgrammar {version} is installed, tested are {least} up to, not including, {below}",
            reason="what a schema means to it differs between versions, and nothing would tell",
            remedy=f"pip install --no-deps xgrammar=={least}",
        )


def _imported() -> ModuleType:
    if "xgrammar" in sys.modules or "transformers" in sys.modules or importlib.util.find_spec("transformers"):
        return importlib.import_module("xgrammar")
    # WORKAROUND(xgrammar 0.2): it imports transformers at start, for two type checks and a base class. A stand-in with
    # these names is there for the time of the import. Delete when xgrammar imports transformers on use.
    sys.modules["transformers"] = _stand_in()
    try:
        return importlib.import_module("xgrammar")
    finally:
        del sys.modules["transformers"]


def _stand_in() -> ModuleType:
    module = ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast", "LogitsProcessor"):
        setattr(module, name, type(name, (), {}))
    return module
