"""The inputs of a decode step in memory that stays where it is, with placeholders behind the rows of the step.

A placeholder is a request of one token at position 0 over the null block and the null slots
(``deepinfer_native.placeholder_inputs``, ``spec/engine.md`` 5.9): what it writes nobody reads, and
``valid_token_mask`` is false there.

Only fields of rows are kept. Fields of requests say how the rows were made; a forward that needs no more than its rows
(``Model.static_decode``) does not read them, and their number varies for one number of rows.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from deepinfer_core.errors import EngineError

Tensor = Any
Key = tuple[str, int | None]
"""A field, and the ratio of one of its arrays."""
CopyAll = Callable[[Sequence[Tensor], Sequence[Tensor]], object]
MOST_SLICES = 64
"""Parts whose views are kept: making them anew each step would take longer than copying."""


def copy_each(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


class StaticInputs:
    """Inputs of up to ``max_rows`` rows.

    :param first: A bound record of a decode step: which fields there are, their types and widths.
    :param placeholder: A bound record of one placeholder row.
    :param copy_all: Copies tensors into others of the same shapes, one by one or all at once.
    """

    def __init__(self, first: Any, placeholder: Any, max_rows: int, copy_all: CopyAll = copy_each) -> None:
        self._copy_all = copy_all
        self._keys: list[Key] = []
        self._memory: list[Tensor] = []
        self._pads: list[Tensor] = []
        for key, tensor in zip(*row_arrays(first), strict=True):
            pad = _pad_of(key, tensor, placeholder)
            memory = tensor.new_empty((max_rows, *tensor.shape[1:]))
            memory.copy_(pad.expand(memory.shape))
            self._keys.append(key)
            self._memory.append(memory)
            self._pads.append(pad)
        self._empty = _without_arrays(first)
        self._views: dict[int, Any] = {}
        self._slices: dict[tuple[int, int], tuple[list[Tensor], list[Tensor]]] = {}
        self._filled = 0

    def load(self, sources: list[Tensor], rows: int, size: int) -> Any:
        """Copy ``rows`` rows of the arrays of :func:`row_arrays` and fill up to ``size``. Returns the record of that
        size, always the same one; all work is queued on the device."""
        targets, _ = self._part(0, rows)
        dirty = min(self._filled, size)
        if dirty > rows:
            rest, pads = self._part(rows, dirty)
            targets, sources = targets + rest, sources + pads
        self._copy_all(targets, sources)
        # Rows beyond `size` keep what an earlier step left there until a step reads that far.
        self._filled = self._filled if self._filled > size else rows
        return self.view(size)

    def _part(self, begin: int, end: int) -> tuple[list[Tensor], list[Tensor]]:
        """Rows ``begin`` to ``end`` of every array, and the same rows of placeholders."""
        found = self._slices.get((begin, end))
        if found is None:
            if len(self._slices) >= MOST_SLICES:
                self._slices.clear()
            memory = [tensor[begin:end] for tensor in self._memory]
            pads = [pad.expand(part.shape).contiguous() for pad, part in zip(self._pads, memory, strict=True)]
            found = self._slices[begin, end] = memory, pads
        return found

    def view(self, size: int) -> Any:
        """The record of the first ``size`` rows."""
        found = self._views.get(size)
        if found is None:
            found = self._views[size] = self._make_view(size)
        return found

    def _make_view(self, size: int) -> Any:
        record = copy.copy(self._empty)
        record.num_reqs = record.total_q = size
        for (name, ratio), memory in zip(self._keys, self._memory, strict=True):
            part = memory[:size]
            if ratio is None:
                setattr(record, name, part)
            else:
                setattr(record, name, {**(getattr(record, name) or {}), ratio: part})
        return record

    @property
    def nbytes(self) -> int:
        return sum(int(memory.nbytes) for memory in self._memory)


def _pad_of(key: Key, tensor: Tensor, placeholder: Any) -> Tensor:
    """``[1, ...]``: what a placeholder has in a field."""
    name, ratio = key
    pad = getattr(placeholder, name, None)
    pad = pad.get(ratio) if ratio is not None and pad is not None else pad
    if pad is None:  # a field that the packer of placeholders does not know, such as the rows to draw experts for
        pad = tensor.new_zeros((1, *tensor.shape[1:]))
    if tuple(pad.shape) != (1, *tensor.shape[1:]) or pad.dtype != tensor.dtype:
        raise EngineError(
            f"a placeholder row does not fit field {name} of a decode step",
            reason=f"rows are {tuple(tensor.shape[1:])} of {tensor.dtype}, "
            f"the placeholder is {tuple(pad.shape[1:])} of {pad.dtype}",
            remedy="this is a bug of the engine; run with --no-graphs and report it",
            details={"field": name, "ratio": ratio},
        )
    return pad


def row_arrays(record: Any) -> tuple[list[Key], list[Tensor]]:
    """The arrays of ``record`` that have an entry for each row, those of each ratio one by one, and their names."""
    keys: list[Key] = []
    tensors: list[Tensor] = []
    for name in row_fields(type(record)):
        value = getattr(record, name)
        if value is None:
            continue
        if isinstance(value, dict):
            for ratio, tensor in value.items():
                keys.append((name, ratio))
                tensors.append(tensor)
        else:
            keys.append((name, None))
            tensors.append(value)
    return keys, tensors


def signature(record: Any, keys: Sequence[Key]) -> Hashable:
    """What is equal for all steps of one :class:`StaticInputs`: the fields, and the numbers beside the arrays.

    Types and widths of the fields do not change in an engine.
    """
    return tuple(keys), tuple(_numbers(record))


def row_fields(kind: type[Any]) -> tuple[str, ...]:
    """Fields of a contract record whose arrays have an entry for each row of a decode step."""
    found = _ROW_FIELDS.get(kind)
    if found is None:
        from deepinfer_contracts import CONTRACTS

        declared = dict(CONTRACTS[kind.CONTRACT].fields)
        found = tuple(name for name in kind.FIELDS if _is_of_rows(declared.get(name, "")))
        _ROW_FIELDS[kind] = found
    return found


_ROW_FIELDS: dict[type[Any], tuple[str, ...]] = {}


def _is_of_rows(declared: str) -> bool:
    """``declared``: type and shape as the contract says them, e.g. ``i32[T, MB]`` or ``i32[CQ(r) | T]/ratio``."""
    shape = declared.partition("[")[2].partition("]")[0]
    return "T" in (part.strip() for part in shape.partition(",")[0].split("|"))


def _numbers(record: Any) -> list[int]:
    return [int(getattr(record, name) or 0) for name in _number_fields(type(record))]


def _number_fields(kind: type[Any]) -> tuple[str, ...]:
    """Fields that are no arrays, but for those that the number of rows decides."""
    found = _NUMBERS.get(kind)
    if found is None:
        from deepinfer_contracts import CONTRACTS

        declared = dict(CONTRACTS[kind.CONTRACT].fields)
        plain = [name for name in kind.FIELDS if declared.get(name, "[").isalnum()]
        found = _NUMBERS[kind] = tuple(name for name in plain if name not in ("num_reqs", "total_q"))
    return found


_NUMBERS: dict[type[Any], tuple[str, ...]] = {}


def _without_arrays(record: Any) -> Any:
    empty = type(record)()
    for name, value in zip(_number_fields(type(record)), _numbers(record), strict=True):
        setattr(empty, name, value)
    return empty
