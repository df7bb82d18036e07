"""From a kernel and its sizes to AscendC source, by TileLang's passes for Ascend 950 (``dav-3510``)."""

from __future__ import annotations

import functools
import re
import time
from typing import Any

from attrs import frozen

from deepinfer_ascend.jit.registry import factories
from deepinfer_core.errors import VendorImportError

_ENTRY = re.compile(r'extern "C" __global__ \w+ void (\w+)\(([^)]*)\)')


@frozen
class Argument:
    """:ivar ctype: ``bfloat16_t``, ``int32_t``. :ivar is_pointer: to memory of the device."""

    name: str
    ctype: str
    is_pointer: bool


@frozen
class Lowered:
    """:ivar entry: name of the kernel's function. :ivar seconds: what lowering took. :ivar sizes: it was made in."""

    name: str
    source: str
    entry: str
    arguments: tuple[Argument, ...]
    seconds: float
    sizes: tuple[tuple[str, Any], ...] = ()


@functools.lru_cache(maxsize=64)
def _lowered(name: str, sizes: tuple[tuple[str, Any], ...]) -> Lowered:
    try:
        import tilelang
        from tvm.target import Target
    except ImportError as exc:
        raise VendorImportError(
            "kernels of backend ascend are lowered by TileLang, which cannot be imported",
            reason=str(exc),
            remedy="pip install 'deepinfer-ascend[kernels]'",
            details={"backend": "ascend", "vendor": "tilelang"},
        ) from exc
    target = Target({"kind": "ascend"})
    began = time.perf_counter()
    with target:  # SIMT regions ask for it while the kernel is built, too
        source = tilelang.lower(factories()[name](**dict(sizes)), target=target).kernel_source
    entry, arguments = signature(source)
    return Lowered(name, source, entry, arguments, time.perf_counter() - began, sizes)


def lowered(name: str, **sizes: Any) -> Lowered:
    """The source of kernel ``name`` in ``sizes``; made once in a process.

    :raises VendorImportError: TileLang is not installed.
    """
    return _lowered(name, tuple(sorted(sizes.items())))


def signature(source: str) -> tuple[str, tuple[Argument, ...]]:
    """Name and arguments of the kernel's function."""
    found = _ENTRY.search(source)
    if found is None:
        raise ValueError("the source has no kernel")
    arguments = []
    for text in filter(None, (part.strip() for part in found[2].split(","))):
        before, _, name = text.rpartition(" ")
        words = [word for word in before.replace("*", "").split() if not word.startswith("__") and word != "const"]
        arguments.append(Argument(name, " ".join(words), "*" in text))
    return found[1], tuple(arguments)
