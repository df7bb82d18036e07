"""The inputs of a decode step in memory that stays where it is, with placeholders behind the rows of the step.

A placeholder is a request of one token at position 0 over the null block and the null slots
(``deepinfer_native.placeholder_inputs``, ``spec/engine.md`` 5.9): what it writes nobody reads, and
``valid_token_mask`` is false there.

Only fields of rows are kept. Fields of requests say how the rows were made; a forward that needs no more than its rows
(``Model.static_decode``) does not read them, and their number varies for one number of rows.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from attrs import define, field

from deepinfer_core.errors import EngineError

Tensor = Any
Key = tuple[str, int | None]
"""A field, and the ratio of one of its arrays."""


class StaticInputs:
    """Inputs of up to ``max_rows`` rows.

    :param first: A bound record of a decode step: which fields there are, their types and widths.
    :param placeholder: A bound record of one placeholder row.
    """

    def __init__(self, first: Any, placeholder: Any, max_rows: int) -> None:
        self._arrays = {key: _Rows.of(key, tensor, placeholder, max_rows) for key, tensor in row_arrays(first)}
        self._empty = _without_arrays(first)
        self._views: dict[int, Any] = {}
        self._filled = 0

    def load(self, inputs: Any, rows: int, size: int) -> Any:
        """Copy the ``rows`` rows of ``inputs`` and fill up to ``size``. Returns the record of that size, always the
        same one; all work is queued on the device."""
        for key, tensor in row_arrays(inputs):
            self._arrays[key].load(tensor, rows, min(self._filled, size))
        # Rows beyond `size` keep what an earlier step left there until a step reads that far.
        self._filled = max(rows, self._filled if self._filled > size else 0)
        return self.view(size)

    def view(self, size: int) -> Any:
        """The record of the first ``size`` rows."""
        found = self._views.get(size)
        if found is None:
            found = self._views[size] = self._make_view(size)
        return found

    def _make_view(self, size: int) -> Any:
        record = copy.copy(self._empty)
        record.num_reqs = record.total_q = size
        for (name, ratio), rows in self._arrays.items():
            part = rows.memory[:size]
            if ratio is None:
                setattr(record, name, part)
            else:
                setattr(record, name, {**(getattr(record, name) or {}), ratio: part})
        return record

    @property
    def nbytes(self) -> int:
        return sum(int(rows.memory.nbytes) for rows in self._arrays.values())


def signature(inputs: Any) -> Hashable:
    """What is equal for all steps of one :class:`StaticInputs`: fields, widths, and the numbers beside the arrays."""
    arrays = tuple((key, tensor.shape[1:], tensor.dtype) for key, tensor in row_arrays(inputs))
    numbers = tuple((name, value) for name, value in _numbers(inputs) if name not in ("num_reqs", "total_q"))
    return arrays, numbers


@define(eq=False)
class _Rows:
    """``memory [max_rows, ...]``; ``pad [1, ...]`` is what a placeholder has there."""

    memory: Tensor
    pad: Tensor = field()

    @classmethod
    def of(cls, key: Key, tensor: Tensor, placeholder: Any, max_rows: int) -> _Rows:
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
        memory = tensor.new_empty((max_rows, *tensor.shape[1:]))
        memory.copy_(pad.expand(memory.shape))
        return cls(memory, pad)

    def load(self, tensor: Tensor, rows: int, filled: int) -> None:
        self.memory[:rows].copy_(tensor[:rows])
        if filled > rows:
            rest = self.memory[rows:filled]
            rest.copy_(self.pad.expand(rest.shape))


def row_arrays(record: Any) -> Iterator[tuple[Key, Tensor]]:
    """The arrays of ``record`` that have an entry for each row, those of each ratio one by one."""
    for name in row_fields(type(record)):
        value = getattr(record, name)
        if isinstance(value, Mapping):
            for ratio, tensor in value.items():
                yield (name, ratio), tensor
        elif value is not None:
            yield (name, None), value


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


def _numbers(record: Any) -> Iterator[tuple[str, int]]:
    for name in type(record).FIELDS:
        value = getattr(record, name)
        if isinstance(value, int):
            yield name, int(value)


def _without_arrays(record: Any) -> Any:
    empty = type(record)()
    for name, value in _numbers(record):
        setattr(empty, name, value)
    return empty
