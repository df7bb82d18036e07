"""C layout of records: members, explicit padding and offsets, the one source of header, cdef and static asserts."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from generator.schema import DTYPES, ENVELOPE, Contract, Schema

VIEW_SIZE = 88  # data 8, dtype 4, ndim 4, shape 32, stride 32, space 4, flags 4; asserted in the header


@frozen
class Member:
    ctype: str
    name: str
    length: int  # 0: no array
    offset: int
    size: int

    @property
    def declaration(self) -> str:
        return f"{self.ctype} {self.name}{f'[{self.length}]' if self.length else ''};"

    @property
    def is_padding(self) -> bool:
        return self.name.startswith("pad_")


class _Builder:
    def __init__(self) -> None:
        self.members: list[Member] = []
        self.offset = 0
        self.widest = 1

    def add(self, ctype: str, name: str, size: int, align: int, length: int = 0) -> None:
        self._pad(align)
        total = size * (length or 1)
        self.members.append(Member(ctype, name, length, self.offset, total))
        self.offset += total
        self.widest = max(self.widest, align)

    def _pad(self, align: int) -> None:
        gap = -self.offset % align
        if gap:
            self.members.append(Member("uint8_t", f"pad_{self.offset}", gap, self.offset, gap))
            self.offset += gap

    def close(self) -> None:
        self._pad(self.widest)


def capacity_of(schema: Schema, per: str) -> int:
    return {"": 0, "ratio": schema.capacity["MAX_RATIOS"], "draft_step": schema.capacity["MAX_DRAFT_STEPS"]}[per]


def record_layout(schema: Schema, contract: Contract) -> tuple[list[Member], int]:
    """Members in order with padding, and the size of the record."""
    b = _Builder()
    if contract.base:
        _, size = record_layout(schema, contract.base)
        b.add(contract.base.struct, "base", size, 8)
    else:
        for name, dtype in ENVELOPE:
            ctype, size, _ = DTYPES[dtype]
            b.add(ctype, name, size, size)
    for f in contract.fields:
        if f.is_array:
            b.add("di_view", f.name, VIEW_SIZE, 8, capacity_of(schema, f.per))
        else:
            ctype, size, _ = DTYPES[f.dtype]
            b.add(ctype, f.name, size, size, capacity_of(schema, f.per))
    b.close()
    return b.members, b.offset


def limits_members(schema: Schema) -> list[Member]:
    """``di_limits``: the configuration, then scratch memory for the checks of level FULL."""
    b = _Builder()
    for x in schema.limits:
        if x.tuple:
            b.add("int32_t", f"num_{x.name}", 4, 4)
            b.add("int32_t", x.name, 4, 4, schema.capacity["MAX_RATIOS"])
        else:
            b.add("int32_t", x.name, 4, 4)
    b.add("uint64_t", "step_id", 8, 8)
    b.add("void", "*scratch", 8, 8)
    b.add("uint64_t", "scratch_bytes", 8, 8)
    b.close()
    return b.members


def struct_text(name: str, members: Sequence[Member]) -> str:
    body = "\n".join(f"    {m.declaration}" for m in members)
    return f"typedef struct {name} {{\n{body}\n}} {name};\n"
