"""The same call twice: results must be equal bit for bit, whatever was in memory before (class R0)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from deepinfer_core.conformance.failures import fail

_PLAIN = (str, bytes, int, float, bool, type(None), torch.dtype, torch.device)


def run_twice(
    call: Callable[..., Any], *args: Any, op: str = "", defined: Callable[[Any], Any] | None = None, **kwargs: Any
) -> Any:
    """Run ``call`` on a deep copy of its arguments and then on the arguments themselves, compare, and return the
    result of the second run.

    ``out`` is filled with other poison before each run. Arguments that the op changes (a state, a cache) must end
    equal too.

    :param defined: of a result, the part that the op's contract defines; the rest may be whatever was in memory.
        None: all of it.
    :raises ConformanceFailure: naming the first value that differs.
    """
    __tracebackhide__ = True
    copied_args, copied = copy.deepcopy((args, kwargs))
    _poison(copied.get("out"), 0xA5)
    first = call(*copied_args, **copied)
    part = defined or (lambda result: result)
    snapshot = copy.deepcopy((part(first), copied_args, copied))
    whole = copy.deepcopy(first) if defined else None  # blocks of its size are what the second run may get
    del first, copied_args, copied
    _poison_free_memory((snapshot, whole))
    _poison(kwargs.get("out"), 0x5A)
    second = call(*args, **kwargs)
    compare_bits(snapshot, (part(second), args, kwargs), "a second run on the same inputs differs", op=op)
    return second


def compare_bits(left: Any, right: Any, what: str, **facts: object) -> None:
    """Raise ConformanceFailure unless both trees hold the same tensors, bit for bit, and the same values."""
    __tracebackhide__ = True
    ours, theirs = list(walk(left)), list(walk(right))
    if [path for path, _ in ours] != [path for path, _ in theirs]:
        fail(what, **facts, got="another structure")
    for (path, a), (_, b) in zip(ours, theirs, strict=True):
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            if a.shape != b.shape or a.dtype != b.dtype:
                fail(
                    what, **facts, where=path, got=f"{b.dtype} {tuple(b.shape)}", expected=f"{a.dtype} {tuple(a.shape)}"
                )
            x, y = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
            if not torch.equal(x, y):
                place = int((x != y).int().argmax()) // a.element_size()
                fail(
                    what,
                    **facts,
                    where=path,
                    worst=place,
                    got=b.detach().cpu().reshape(-1)[place].item(),
                    expected=a.detach().cpu().reshape(-1)[place].item(),
                    differing=f"{int((x != y).sum())} of {x.numel()} bytes",
                )
        elif a != b and not (a != a and b != b):  # NaN equals NaN here
            fail(what, **facts, where=path, got=repr(b), expected=repr(a))


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors and plain values inside tuples, lists, mappings, records and objects, each with its path."""
    if isinstance(value, (Tensor, *_PLAIN)):
        yield path or "result", value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk(item, f"{path}[{key!r}]")
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            yield from walk(item, f"{path}[{place}]")
    elif attrs.has(type(value)):
        for field in attrs.fields(type(value)):
            item = getattr(value, field.name)
            if not callable(item):
                yield from walk(item, f"{path}.{field.name}")
    elif hasattr(value, "__array__"):
        yield path, torch.as_tensor(value)
    elif not callable(value) and hasattr(value, "__dict__"):
        yield from walk(vars(value), path)


def _poison(tree: Any, byte: int) -> None:
    for _, value in walk(tree):
        if isinstance(value, Tensor) and value.numel():
            filled = torch.full((value.numel() * value.element_size(),), byte, dtype=torch.uint8)
            value.copy_(filled.view(value.dtype).view(value.shape))


def _poison_free_memory(results: Any) -> None:
    """Fill and free blocks as large as the results: what an op leaves unwritten then differs in the second run."""
    tensors = [value for _, value in walk(results) if isinstance(value, Tensor) and value.numel()]
    blocks = [torch.full((t.numel() * t.element_size(),), 0x5A, dtype=torch.uint8, device=t.device) for t in tensors]
    del blocks
