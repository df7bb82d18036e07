"""Kernels of ours on a device: TileLang lowers them, ``bisheng`` compiles the source, and TileLang's host code launches
it on torch's current stream.

No device has run one. What is tested is everything up to the launch, with programs in place of the two compilers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen

from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.jit.registry import factories
from deepinfer_ascend.jit.toolchain import Toolchain, toolchain
from deepinfer_core.errors import EngineError, VendorImportError


@frozen(eq=False)
class Compiled:
    """:ivar call: takes the arguments in their order. :ivar arguments: their names, without sizes that shapes tell."""

    name: str
    call: Callable[..., Any]
    arguments: tuple[str, ...]

    def __call__(self, **given: Any) -> None:
        """Launch it. ``given``: every argument by its name; sizes of tensors may be among them and are left out.

        :raises ShapeContractError: an argument is missing.
        """
        missing = [name for name in self.arguments if name not in given]
        if missing:
            raise misfit(self.name, "arguments", ", ".join(self.arguments), f"no {', '.join(missing)}")
        self.call(*(given[name] for name in self.arguments))


def compiled(name: str, sizes: Mapping[str, Any]) -> Compiled:
    """Kernel ``name`` in ``sizes``, compiled once in a process, and kept by TileLang in its own cache.

    :raises VendorImportError: TileLang, ``bisheng`` or its linker is not here.
    :raises EngineError: ``bisheng`` does not take the source.
    """
    return _compiled(name, tuple(sorted(sizes.items())))


def require(tools: Toolchain, kernel: str = "") -> None:
    """:raises VendorImportError: something of ``tools`` is not here. :param kernel: that is wanted, for the record."""
    if tools.problem:
        raise VendorImportError(
            "kernels of backend ascend cannot be compiled for the device",
            reason=f"{tools.problem}; TileLang lowers a kernel, and bisheng of CANN compiles it",
            remedy=f"{tools.remedy}; or DEEPINFER_ASCEND_LOWERED=0, which leaves their ops to plain ones",
            details={"backend": "ascend", "vendor": "bisheng" if tools.has_tilelang else "tilelang", "kernel": kernel},
        )


@functools.lru_cache(maxsize=256)
def _compiled(name: str, sizes: tuple[tuple[str, Any], ...]) -> Compiled:
    require(toolchain(), name)
    import tilelang
    from tvm.target import Target

    target = Target({"kind": "ascend"})
    with target:  # SIMT regions ask for it while the kernel is built, too
        function = factories()[name](**dict(sizes))
        try:
            kernel = tilelang.compile(function, target=target, execution_backend="tvm_ffi")
        except RuntimeError as exc:
            raise _refused(name, exc) from exc
    buffers = [function.buffer_map.get(parameter) for parameter in function.params]
    names = (b.name if b is not None else p.name for b, p in zip(buffers, function.params, strict=True))
    return Compiled(name, kernel, tuple(names))


def _refused(name: str, exc: RuntimeError) -> EngineError:
    lines = [line for line in str(exc).splitlines() if line.strip()]
    words = next(
        (line for line in lines if "error" in line.lower() and "failed" not in line), lines[0] if lines else ""
    )
    return EngineError(
        f"the kernel {name} cannot be compiled for the device",
        reason=words.strip()[:300],
        remedy="DEEPINFER_ASCEND_LOWERED=0 leaves its op to the plain one; and please report it",
        details={"backend": "ascend", "kernel": name},
    )
