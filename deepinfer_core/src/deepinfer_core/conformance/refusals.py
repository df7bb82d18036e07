"""Calls that an op has to refuse: a typed error that names the op, before anything is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from deepinfer_contracts import OPS
from deepinfer_core.conformance.bitwise import require_same_bytes
from deepinfer_core.conformance.failures import fail, require
from deepinfer_core.errors import DeepInferError


def require_refused(ops: Mapping[str, Callable[..., Any]], op: str, case: str, *args: Any, **kwargs: Any) -> None:
    """Fail unless the call raises a DeepInferError that names an op and leaves every tensor argument as it was."""
    __tracebackhide__ = True
    before = [(tensor, tensor.detach().clone()) for tensor in _tensors([*args, *kwargs.values()])]
    try:
        ops[op](*args, **kwargs)
    except DeepInferError as exc:
        named = any(known in str(exc) for known in OPS)  # an op inside, quant.cast_per_token say, names itself
        require(named, f"{op}: the error names no op", op=op, case=case, got=str(exc))
    except Exception as exc:  # whatever it raises instead is the finding
        fail(f"{op} raises an untyped error", op=op, case=case, got=f"{type(exc).__name__}: {exc}",
             expected="a DeepInferError (E_SHAPE)")  # fmt: skip
    else:
        fail(f"{op} accepts a bad call", op=op, case=case, expected="a DeepInferError (E_SHAPE)")
    for tensor, copy in before:
        require_same_bytes(tensor, copy, f"{op} wrote before it refused", op=op, case=case)


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
        elif hasattr(value, "sf") and isinstance(value.data, Tensor):  # a QuantTensor
            yield from (value.data, value.sf)
