"""From a kernel and its sizes to AscendC source, by TileLang's passes for Ascend 950 (``dav-3510``)."""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from attrs import frozen

from deepinfer_ascend.jit.kept import cache_folder, publish
from deepinfer_ascend.jit.registry import factories
from deepinfer_core.caches import formats
from deepinfer_core.errors import VendorImportError

_MEMORIES = {"shared": "UB", "shared.l1": "L1", "shared.l0a": "L0A", "shared.l0b": "L0B", "shared.l0c": "L0C"}
"""What TileLang calls the memories of a core."""
_ENTRY = re.compile(r'extern "C" __global__ \w+ void (\w+)\(([^)]*)\)')


@frozen
class Argument:
    """:ivar ctype: ``bfloat16_t``, ``int32_t``. :ivar is_pointer: to memory of the device."""

    name: str
    ctype: str
    is_pointer: bool


@frozen
class Lowered:
    """:ivar entry: name of the kernel's function. :ivar seconds: what lowering took. :ivar sizes: it was made in.

    :ivar memory: what its buffers take of each on-chip memory, in bytes: ``UB``, ``L1``, ``L0A``, ``L0B``, ``L0C``.
    """

    name: str
    source: str
    entry: str
    arguments: tuple[Argument, ...]
    seconds: float
    sizes: tuple[tuple[str, Any], ...] = ()
    memory: tuple[tuple[str, int], ...] = ()


@functools.lru_cache(maxsize=256)
def _lowered(name: str, sizes: tuple[tuple[str, Any], ...]) -> Lowered:
    kept = cache_folder() / f"{name}-{_digest(name, sizes)}.json"
    try:
        found = json.loads(kept.read_text())
        memory = tuple((where, int(n)) for where, n in found["memory"])
        entry, arguments = signature(found["source"])
        return Lowered(name, found["source"], entry, arguments, found["seconds"], sizes, memory)
    except (OSError, ValueError, KeyError, TypeError):  # none, or one that cannot be read: it is made again
        made = _lower(name, sizes)
    text = json.dumps({"source": made.source, "memory": made.memory, "seconds": made.seconds})
    publish(kept, lambda scrap: scrap.write_text(text) and None)
    return made


def _digest(name: str, sizes: tuple[tuple[str, Any], ...]) -> str:
    """Of what a source is made from: the kernels, their sizes, TileLang."""
    known = f"{name} {sizes} {_tilelang_version()}".encode()
    return hashlib.sha256(known + b"".join(path.read_bytes() for path in kernel_files(name))).hexdigest()[:24]


@functools.cache
def _trees() -> Mapping[str, ast.Module]:
    """Every module of ``tl``, read and not imported: that would import TileLang, which kept kernels do not need."""
    return {path.stem: ast.parse(path.read_bytes()) for path in (Path(__file__).parents[1] / "tl").glob("*.py")}


@functools.cache
def kernel_files(name: str) -> tuple[Path, ...]:
    """What kernel ``name`` is made from: its module and those of ``tl`` that it imports, and what all are made with."""
    folder, trees = Path(__file__).parents[1], _trees()
    defines = (stem for stem, tree in trees.items() for node in tree.body if getattr(node, "name", "") == name)
    found, left = set[str](), set(defines)
    while left:
        found |= left
        left = {name for stem in left for name in _imported(trees[stem])} & trees.keys() - found
    kernels = [folder / "tl" / f"{stem}.py" for stem in sorted(found)]
    return (*kernels, folder / "chip.py", Path(formats.__file__), Path(__file__))


def _imported(tree: ast.Module) -> Iterator[str]:
    """Modules beside this one, by their last names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.rpartition(".")[2]
            yield from (alias.name for alias in node.names)


def _tilelang_version() -> str:
    try:
        return metadata.version("tilelang")
    except metadata.PackageNotFoundError:
        return ""


def _lower(name: str, sizes: tuple[tuple[str, Any], ...]) -> Lowered:
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
        made = tilelang.lower(factories()[name](**dict(sizes)), target=target)
    entry, arguments = signature(made.kernel_source)
    seconds = time.perf_counter() - began
    return Lowered(name, made.kernel_source, entry, arguments, seconds, sizes, _memory(made.device_mod))


def _memory(module: Any) -> tuple[tuple[str, int], ...]:
    """Bytes of the buffers that the passes left, by memory. Their addresses in the source are in these."""
    from tvm.tirx import stmt_functor

    found: dict[str, int] = {}

    def visit(node: Any) -> None:
        if type(node).__name__ == "AllocBuffer":
            scope = node.buffer.scope().removesuffix(".dyn")
            if scope in _MEMORIES:
                values = math.prod(int(n) for n in node.buffer.shape)
                bits = values * node.buffer.dtype.bits * node.buffer.dtype.lanes
                found[_MEMORIES[scope]] = found.get(_MEMORIES[scope], 0) + bits // 8

    for function in module.functions.values():
        stmt_functor.post_order_visit(function.body, visit)
    return tuple(sorted(found.items()))


def lowered(name: str, **sizes: Any) -> Lowered:
    """The source of kernel ``name`` in ``sizes``; made once, and kept (``jit/kept.py``).

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
