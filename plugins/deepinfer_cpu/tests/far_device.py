"""A device that is none: tensors of device ``far`` whose values lie in host memory, for tests of ops without a GPU.

An op runs on it like on an accelerator: it takes the paths of a device, every tensor must be there, and inside
:func:`launching` a call that an accelerator would have to be waited for is an error. What an accelerator computes
otherwise than the host is refused as well: it divides by a number of the host by multiplying with its reciprocal.

torch knows one accelerator a process, and pins host memory for that one. Where a real one is, the modules that import
this are skipped: with ``far`` in its place, nothing could be pinned for it any more, in all other tests of the process.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from deepinfer_core.errors import HiddenSync
from deepinfer_cpu import sync_guard

_KERNELS = torch.library.Library("aten", "IMPL")
if not hasattr(torch, "far"):
    if (_real := torch.accelerator.current_accelerator(check_available=True)) is not None:
        pytest.skip(
            f"the accelerator of this process is {_real.type}: hide it (CUDA_VISIBLE_DEVICES=) and run this alone",
            allow_module_level=True,
        )
    _setup_privateuseone_for_python_backend(rename="far")
FAR = torch.device("far", 0)
NAMES = ("far", "far:0")
_MOVES = frozenset({"aten::_to_copy", "aten::to", "aten::copy_", "aten::copy"})
_DIVISIONS = frozenset({"aten::div", "aten::div_", "aten::divide", "aten::true_divide"})
_launching = _may_upload = False


class WaitsError(AssertionError):
    """The op waits for the device, or needs a tensor that is not there."""


@contextlib.contextmanager
def launching(*, uploads: bool = False) -> Iterator[None]:
    """What runs in here may only launch; with ``uploads``, host memory may be copied to the device too."""
    global _launching, _may_upload
    before = _launching, _may_upload
    _launching, _may_upload = True, uploads
    try:
        yield
    finally:
        _launching, _may_upload = before


class FarTensor(Tensor):
    """A tensor of the device; ``near`` is where its values are."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> FarTensor:
        made: FarTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            near.shape,
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device=FAR,
            requires_grad=False,
            storage_size=near.untyped_storage().nbytes(),
        )
        made.near = near
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, args, kwargs or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> FarTensor:
        """Tensors that share memory share that of the copies too."""
        known = memo.get(id(self))
        if known is None:
            known = memo[id(self)] = FarTensor(copy.deepcopy(self.near, memo))
        made: FarTensor = known
        return made

    def tolist(self) -> Any:
        if _launching:
            raise _waits("Tensor.tolist reads on the host")
        return self.near.tolist()

    def __repr__(self, **_: Any) -> str:
        return f"far {self.near!r}"


def run(func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
    """The op on the values, its results where they belong."""
    name = func._schema.name
    flat, _ = tree_flatten((args, kwargs))
    tensors = [x for x in flat if isinstance(x, Tensor)]
    far = [x for x in tensors if isinstance(x, FarTensor)]
    devices = [x for x in flat if isinstance(x, torch.device)]
    if not far and not any(d.type == FAR.type for d in devices):
        return func(*args, **kwargs)
    goes_home = bool(far) and any(d.type == "cpu" for d in devices)
    if _launching:
        _check_launch(name, args, kwargs, tensors, goes_home)
    stays = {id(x.near): x for x in far}

    def near(x: Any) -> Any:
        if isinstance(x, FarTensor):
            return x.near
        return torch.device("cpu") if isinstance(x, torch.device) else x

    def back(x: Any) -> Any:
        if not isinstance(x, Tensor) or isinstance(x, FarTensor) or goes_home:
            return x
        known = stays.get(id(x))
        return FarTensor(x) if known is None else known

    copies = name in ("aten::to", "aten::_to_copy") and (goes_home or not far)
    with torch.inference_mode(False), torch.no_grad():  # a view in that mode must be of the kind of its base
        out = func(*tree_map(near, args), **tree_map(near, dict(kwargs)))
        if copies and isinstance(out, Tensor):
            out = out.clone()
        if name == "aten::copy_" and not isinstance(args[0], FarTensor):
            return args[0]
        return tree_map(back, out)


def _waits(what: str) -> Exception:
    """What a guard around a step raises, or, inside an op, what no test of a refusal takes for one."""
    return HiddenSync(what, remedy="keep the value on the device") if _may_upload else WaitsError(what)


def _check_launch(name: str, args: Any, kwargs: Mapping[str, Any], tensors: list[Tensor], goes_home: bool) -> None:
    if goes_home:
        raise _waits(f"{name} copies to the host")
    if name in sync_guard._ALWAYS or sync_guard._needs_a_size(name, args, dict(kwargs)):
        raise _waits(f"{name} reads on the host")
    stray = [x for x in tensors if not isinstance(x, FarTensor)]
    if _may_upload and name in _MOVES:
        return
    if stray:
        raise WaitsError(f"{name} gets a tensor of the host: {[tuple(x.shape) for x in stray]}")
    if name in _MOVES and not any(isinstance(x, FarTensor) for x in tensors):
        raise WaitsError(f"{name} copies from the host")
    by = args[1] if name in _DIVISIONS and len(args) > 1 and kwargs.get("rounding_mode") is None else None
    if isinstance(by, float) and abs(math.frexp(by)[0]) != 0.5:
        raise WaitsError(f"{name} by the number {by}, which a device multiplies by its rounded reciprocal")


def _register() -> None:
    """What makes tensors of nothing; everything else sees that its arguments are of the device."""
    for op in ("empty.memory_format", "empty_strided", "arange", "arange.start", "arange.start_step", "eye", "eye.m"):
        name, _, overload = op.partition(".")
        function = getattr(getattr(torch.ops.aten, name), overload or "default")

        def made(*args: Any, _function: Any = function, **kwargs: Any) -> Any:
            return run(_function, args, kwargs)

        _KERNELS.impl(op, made, "PrivateUse1")
    # torch.tensor(..., device=) copies with dispatch to Python switched off.
    _KERNELS.impl("_copy_from", _copied, "PrivateUse1")


def _copied(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    if _launching and not _may_upload:
        raise WaitsError("a tensor is made of numbers of the host")
    near = [x.near if isinstance(x, FarTensor) else x for x in (source, target)]
    near[1].copy_(near[0])
    return target


_register()
