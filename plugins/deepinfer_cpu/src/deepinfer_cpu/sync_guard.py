"""Finds host reads of tensors where a device must not be waited for.

On an accelerator such a read stops the host until everything launched before it has run, and with that the overlap of
two steps. Here a read costs nothing, so nothing would show it. The guard makes it an error on the host, where every
model and sampler is tested. What the backend does inside its own ops is its own affair.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from deepinfer_core.errors import HiddenSync

_PACKAGE = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
DECLARATION = "HOST_READS"
"""A module with this global, whose value is the reason, reads tensors of the host only and may do so."""

_ALWAYS = frozenset(
    {
        "aten::_local_scalar_dense",
        "aten::item",  # int, float, bool, index; as it is under inference_mode, where ops are not taken apart
        "aten::is_nonzero",
        "aten::nonzero",
        "aten::nonzero_numpy",
        "aten::equal",
        "aten::masked_select",
        "aten::_unique2",
        "aten::unique_dim",
        "aten::unique_consecutive",
        "aten::bincount",
    }
)
"""Ops whose result, or the size of it, is a value of the device."""
_METHODS: Mapping[Callable[..., Any], str] = {
    getattr(Tensor, name): f"Tensor.{name}" for name in ("tolist", "numpy", "cpu", "__array__")
}
"""Reads that run no op, or none where the tensor is on the host already."""


class NoSync:
    """Context manager: a host read of a tensor outside this package raises HiddenSync with the place of the call."""

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        self._modes = (_Ops(), _Methods())
        for mode in self._modes:
            mode.__enter__()

    def __exit__(self, *exc: Any) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(*exc)


class _Ops(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func._schema.name
        if name in _ALWAYS or _needs_a_size(name, args, kwargs or {}):
            _refuse(name)
        return func(*args, **(kwargs or {}))


class _Methods(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = _METHODS.get(func)
        if name is None and func is Tensor.to and _names_the_host(args[1:], kwargs or {}):
            name = "Tensor.to('cpu')"
        if name is not None:
            _refuse(name)
        return func(*args, **(kwargs or {}))


def _needs_a_size(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the op must learn from the device how many rows its result has."""
    if name == "aten::repeat_interleave":
        each_alike = len(args) > 1 and isinstance(args[1], int)
        return kwargs.get("output_size") is None and not each_alike
    if name == "aten::where":
        return len(args) == 1  # the indices of what is set
    if name == "aten::index":
        return _has_mask(args[1])
    if name in ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_"):
        return _has_mask(args[1]) and args[2].numel() != 1  # one value is filled in by the mask
    return False


def _has_mask(indices: Sequence[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def _names_the_host(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """The host by its name; a ``torch.device`` is the one that the backend runs on, and here both are the same."""
    wanted = kwargs.get("device", args[0] if args else None)
    return isinstance(wanted, str) and wanted.partition(":")[0] == "cpu"


def _refuse(name: str) -> None:
    frame: FrameType | None = sys._getframe(1)
    place = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and file.startswith(_PACKAGE):
            return
        if place is None and file != __file__ and not file.startswith(_TORCH):
            if DECLARATION in frame.f_globals:
                return
            place = f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    raise HiddenSync(
        f"{name} at {place} reads a tensor on the host while a step is launched",
        reason="on an accelerator the host would wait there for everything launched before, and no step would overlap",
        remedy="keep the value on the device, or read it where the results of the step are committed",
        details={"op": name, "place": place},
    )
