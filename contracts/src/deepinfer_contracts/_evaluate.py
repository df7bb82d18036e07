"""What the operations of the `checks` language mean on numpy arrays, and the tables that the generator fills.

Integers are int64, floats float64. Vectors of different length are compared over the shorter one and then count as
different at its end, as the C validators do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import define, field, frozen

Vector = npt.NDArray[Any]


@frozen
class FieldSpec:
    """One field: what its array must be. ``presence``: (phase, capability conditions, optional) alternatives."""

    name: str
    dtype: str
    count: str
    per: str
    ratios: str
    presence_text: str
    presence: tuple[tuple[str, tuple[Callable[[Env], bool], ...], bool], ...]
    shape: tuple[tuple[str, Callable[[Env], int] | None], ...] | None
    decode_shape: tuple[tuple[str, Callable[[Env], int] | None], ...] | None


@frozen
class RuleSpec:
    """One check: ``form`` is all, true, unique, injective or disjoint over the values of ``body``."""

    index: int
    field: str
    text: str
    full: bool
    form: str
    per: str
    ratios: str
    arrays: tuple[tuple[bool, str], ...]
    needs_step: bool
    only_scalars: bool
    guards: tuple[Callable[[Env], bool], ...]
    body: tuple[Callable[[Env], Any], ...]
    witness: Callable[[Env], Any]


@frozen
class ContractSpec:
    name: str
    prefill: Callable[[Env], bool] | None
    dims: Mapping[str, Callable[[Env], int] | None]
    fields: tuple[FieldSpec, ...]
    rules: tuple[RuleSpec, ...]


class Undefined(Exception):
    """An element that does not exist was asked for (`x[0]` of an empty vector)."""


def readable(array: object) -> bool:
    """Only host arrays have values to check."""
    return isinstance(array, np.ndarray)


@define
class Env:
    """One record under validation. ``r`` and ``j`` are the current ratio and draft step."""

    record: Any
    limits: Any
    step: Any
    dims: Mapping[str, Callable[[Env], int] | None]
    longest: int  # elements of the largest array: repeat() needs no more, whatever a corrupt count says
    r: int = 0
    j: int = 0
    free: dict[tuple[str, int], int] = field(factory=dict)
    mismatch: bool = False
    outside: Vector | None = None
    _cache: dict[tuple[bool, str, int], Vector] = field(factory=dict)

    def begin(self) -> None:
        """Forget what the previous rule found."""
        self.mismatch, self.outside = False, None

    # --- values of the record ----------------------------------------------------------------------------------

    def raw(self, name: str, step: bool = False) -> Any:
        """The attribute; of a keyed field the entry of the current ratio or draft step, None if absent."""
        value = getattr(self.step if step else self.record, name)
        if isinstance(value, dict):
            return value.get(self.r)
        if isinstance(value, list):
            return value[self.j] if self.j < len(value) else None
        return value

    def present(self, name: str) -> bool:
        return getattr(self.record, name) is not None

    def array(self, name: str, column: int = -1, step: bool = False) -> Vector:
        key = (step, name, self.r + (self.j << 32))
        flat = self._cache.get(key)
        raw = self.raw(name, step)
        if flat is None:
            kind = np.float64 if raw.dtype.kind == "f" else np.bool_ if raw.dtype.kind == "b" else np.int64
            flat = raw.reshape(-1).astype(kind)
            self._cache[key] = flat
        return flat if column < 0 else flat[column :: raw.shape[1]]

    def scalar(self, name: str, step: bool = False) -> Any:
        value = self.raw(name, step)
        return 0 if value is None else value

    def dim(self, name: str) -> int:
        value = self.dims[name]
        if value is not None:
            return value(self)
        return self.free.get((name, self.r if "(r)" in name else self.j if "(j)" in name else 0), 0)

    # --- elementwise -------------------------------------------------------------------------------------------

    def _pair(self, a: Any, b: Any) -> tuple[Any, Any]:
        if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and len(a) != len(b):
            self.mismatch = True
            n = min(len(a), len(b))
            return a[:n], b[:n]
        return a, b

    def add(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a + b

    def sub(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a - b

    def mul(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a * b

    def floordiv(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.where(b == 0, 0, a // np.where(b == 0, 1, b)) if isinstance(b, np.ndarray) else a // b if b else a * 0

    def mod(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.where(b == 0, 0, a % np.where(b == 0, 1, b)) if isinstance(b, np.ndarray) else a % b if b else a * 0

    def bitand(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a & b

    def neg(self, a: Any) -> Any:
        return -a

    def lt(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a < b

    def le(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a <= b

    def eq(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a == b

    def ne(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a != b

    def ge(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a >= b

    def gt(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return a > b

    def both(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.logical_and(a, b)

    def either(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.logical_or(a, b)

    def implies(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.logical_or(np.logical_not(a), b)

    def invert(self, a: Any) -> Any:
        return np.logical_not(a)

    def minimum(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.minimum(a, b)

    def maximum(self, a: Any, b: Any) -> Any:
        a, b = self._pair(a, b)
        return np.maximum(a, b)

    def align(self, a: Any, b: Any) -> Any:
        return self.mul(self.floordiv(self.sub(self.add(a, b), 1), b), b)

    def where(self, c: Any, a: Any, b: Any) -> Any:
        c, a = self._pair(c, a)
        c, b = self._pair(c, b)
        c, a = self._pair(c, a)  # b may have been the shortest
        return np.where(c, a, b)

    def finite(self, a: Any) -> Any:
        return np.isfinite(a)

    # --- vectors -----------------------------------------------------------------------------------------------

    def arange(self, n: Any) -> Vector:
        return np.arange(max(int(n), 0), dtype=np.int64)

    def diff(self, x: Vector) -> Vector:
        steps: Vector = x[1:] - x[:-1]
        return steps

    def shift(self, x: Vector, fill: Any) -> Vector:
        """The element before; ``fill`` before the first."""
        out = np.empty_like(x)
        if len(x):
            out[0] = fill
            out[1:] = x[:-1]
        return out

    def slice(self, x: Vector, low: int, high: int) -> Vector:
        part: Vector = x[low : max(len(x) - high, 0)]
        return part

    def cumsum(self, x: Vector) -> Vector:
        total: Vector = np.cumsum(x, dtype=np.int64)
        return total

    def _counts(self, x: Vector, counts: Vector) -> tuple[Vector, Vector]:
        x, counts = self._pair(x, counts)
        wrong = counts < 0
        if wrong.any() or counts.sum(dtype=np.float64) > self.longest + 1:
            self.mismatch = True
            before = np.concatenate([[0.0], np.cumsum(counts.astype(np.float64))[:-1]])
            cut = int(np.argmax(np.append(wrong | (before > self.longest), True)))
            x, counts = (
                x[:cut],
                np.minimum(counts[:cut], np.maximum(self.longest + 1 - before[:cut], 0)).astype(np.int64),
            )
        return x, counts

    def repeat(self, x: Vector, counts: Vector) -> Vector:
        """Element i of ``x``, ``counts[i]`` times."""
        x, counts = self._counts(x, counts)
        out: Vector = np.repeat(x, counts)
        return out

    def ramp(self, counts: Vector) -> Vector:
        """0 .. counts[0]-1, 0 .. counts[1]-1, ..."""
        _, counts = self._counts(counts, counts)
        out: Vector = np.arange(counts.sum(), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
        return out

    def gather(self, x: Vector, index: Vector) -> Vector:
        """``x[index]``; an index outside makes the check fail there."""
        wrong = (index < 0) | (index >= len(x))
        if wrong.any():
            n = len(wrong)
            old = self.outside if self.outside is not None else np.zeros(n, dtype=np.bool_)
            self.outside = old[: min(n, len(old))] | wrong[: min(n, len(old))]
        if not len(x):
            return np.zeros(len(index), dtype=np.int64)
        out: Vector = x[np.clip(index, 0, len(x) - 1)]
        return out

    def item(self, x: Vector, index: Any) -> Any:
        at = int(index) + (len(x) if index < 0 else 0)
        if not 0 <= at < len(x):
            raise Undefined
        value: int | float | bool = x[at].item()
        return value

    # --- reductions --------------------------------------------------------------------------------------------

    def size(self, x: Vector) -> int:
        return len(x)

    def sum(self, x: Vector) -> int:
        return int(x.sum(dtype=np.int64))

    def min(self, x: Vector) -> int:
        return int(x.min()) if len(x) else 0

    def max(self, x: Vector) -> int:
        return int(x.max()) if len(x) else 0

    def any(self, x: Vector) -> bool:
        return bool(x.any())
