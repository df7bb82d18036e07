"""The compiled validators behind a Python call that answers as the Python validators do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import frozen

from deepinfer_contracts import CONTRACTS, ContractViolation, Limits, Record, get_cdef, rule_text, validate
from deepinfer_contracts.cdata import limits_to_c, record_to_c


@frozen
class Verdict:
    """What a validator said of a record; equal verdicts mean that C and Python agree."""

    field: str
    check: str
    index: int | None
    value: float | None


class CLibrary:
    def __init__(self, path: Path) -> None:
        from cffi import FFI  # only these tests need it

        self.ffi = FFI()
        self.ffi.cdef(get_cdef())
        self.lib = self.ffi.dlopen(str(path))

    def check(
        self, record: Record, limits: Limits, level: int, step: Record | None = None, scratch_bytes: int = 0
    ) -> Verdict | None:
        """None: accepted. Raises RuntimeError if status and error disagree."""
        ffi = self.ffi
        c_limits, keep1 = limits_to_c(ffi, limits, scratch_bytes)
        c_record, keep2 = record_to_c(ffi, record, limits)
        name = f"di_check_{CONTRACTS[record.CONTRACT].struct[3:]}"
        error = ffi.new("di_error *")
        arguments: list[Any] = [c_record]
        keep3: list[object] = []
        if step is not None and hasattr(self.lib, f"{name}_in"):
            c_step, keep3 = record_to_c(ffi, step, limits)
            name, arguments = f"{name}_in", [c_record, c_step]
        code = getattr(self.lib, name)(*arguments, c_limits, level, error)
        del keep1, keep2, keep3
        if code == 0:
            return None
        if code != error.code:
            raise RuntimeError(f"{name} returned {code}, the error says {error.code}")
        field = CONTRACTS[record.CONTRACT].fields[error.field][0]
        message = ffi.string(error.message).decode()
        text = rule_text(record.CONTRACT, error.check) or message.split("violates '")[1].rstrip("'")
        if error.check < 0:
            return Verdict(field, text, None, None)
        return Verdict(field, text, error.index if error.index >= 0 else None, error.value)


def python_verdict(record: Record, limits: Limits, level: int, step: Any = None) -> Verdict | None:
    try:
        validate(record, limits, level, step=step)
    except ContractViolation as exc:
        if exc.check.startswith(("presence", "dtype", "shape", "contiguous")):
            return Verdict(exc.field, exc.check, None, None)
        value = exc.values.get("value")
        number = _whole(value) if isinstance(value, (int, float)) else 0
        index = exc.values.get("index")
        return Verdict(exc.field, exc.check, index if isinstance(index, int) else None, number)
    return None


def _whole(value: float) -> int:
    return int(value) if value == value and abs(value) <= 9e18 else 0
