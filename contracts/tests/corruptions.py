"""Ways to damage one field of a record, and the recorded records with every such damage."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from deepinfer_contracts import CONTRACTS, Record

Put = Callable[[Any], None]


def _slots(record: Record, field: str) -> Iterator[tuple[str, Any, Put]]:
    """(label, value, setter) of a field, or of each entry of a keyed one."""
    value = getattr(record, field)
    if isinstance(value, dict):
        for r, v in value.items():
            yield f"{field}[{r}]", v, lambda x, r=r: setattr(record, field, {**value, r: x})
    elif isinstance(value, list):
        for j, v in enumerate(value):
            yield f"{field}[{j}]", v, lambda x, j=j: setattr(record, field, [*value[:j], x, *value[j + 1 :]])
    else:
        yield field, value, lambda x: setattr(record, field, x)


def _elements(array: np.ndarray[Any, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    flat = array.size
    if array.dtype == np.bool_:
        return
    places = range(flat) if flat <= 5 else [0, 1, flat // 2, flat // 2 + 1, flat - 1]
    info = np.finfo(array.dtype) if array.dtype.kind == "f" else np.iinfo(array.dtype)
    whole = [1, -1, 1000]
    for at in places:
        for delta in [0.75, -40.0] if array.dtype.kind == "f" else whole:
            value = array.reshape(-1)[at].item() + delta
            if info.min <= value <= info.max:
                yield f"[{at}] {delta:+}", _with(array, at, value)
        for value in [float("nan"), float("inf")] if array.dtype.kind == "f" else [info.min, info.max, 0]:
            yield f"[{at}] = {value}", _with(array, at, value)
        if at:
            yield f"[{at}] = [{at - 1}]", _with(array, at, array.reshape(-1)[at - 1])


def _with(array: np.ndarray[Any, Any], at: int, value: Any) -> np.ndarray[Any, Any]:
    out = array.copy()
    out.reshape(-1)[at] = value
    return out


def _forms(array: np.ndarray[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Damage to presence, shape, dtype and memory layout."""
    yield "absent", None
    yield "one row less", np.ascontiguousarray(array[:-1])
    yield "one row more", np.concatenate([array, array[:1]])
    yield "empty", np.ascontiguousarray(array[:0])
    yield "another dtype", array.astype(np.int16 if array.dtype != np.int16 else np.int32)
    yield "another rank", array[None]
    if array.ndim == 2:
        yield "one column more", np.ascontiguousarray(np.concatenate([array, array[:, :1]], axis=1))
        if len(array) > 1:
            yield "column order", np.asfortranarray(array)


def field_corruptions(valid: Any, field: str) -> Iterator[tuple[str, Any]]:
    """(label, record) with exactly one field damaged; the other fields are those of ``valid``, not copies."""
    dtype = dict(CONTRACTS[valid.CONTRACT].fields)[field]
    least, most = -1 if dtype[0] in "if" else 0, 255 if dtype.startswith("u8") else 1 << 30
    for n, (label, value, _) in enumerate(list(_slots(valid, field))):
        if value is None or isinstance(value, np.ndarray):
            changed: Iterator[tuple[str, Any]] = iter(())
            if value is not None:
                changed = iter([*_forms(value), *_elements(value)])
        else:
            near = [value - 1, value + 1, value + 1000, -1, 0, 1, 2, 3] if isinstance(value, (int, float)) else []
            changed = iter([(f"= {v}", v) for v in near if least <= v <= most])
        for what, new in changed:
            record = copy.copy(valid)
            list(_slots(record, field))[n][2](new)
            yield f"{label} {what}", record


def corruptions(valid: Any) -> Iterator[tuple[str, str, Any]]:
    """(field, label, record) over all fields of a record."""
    for field, _ in CONTRACTS[valid.CONTRACT].fields[2:]:
        for label, record in field_corruptions(valid, field):
            yield field, label, record
