"""Where the fields of a contract record lie in its C struct."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any

from attrs import define

from deepinfer_native.library import ffi

VIEW = ffi.typeof("di_view")
VIEW_BYTES = ffi.sizeof("di_view")


@define(eq=False)
class Member:
    """One field of a record: where it lies in the struct, and whether it is one value or several."""

    name: str
    path: tuple[str, ...]
    offset: int
    count: int  # 0 = not an array of C values
    is_view: bool
    ctype: str = ""  # of a scalar
    keys: tuple[tuple[str, int], ...] = ()  # of its arrays, in `Slot.arrays`


def members_of(struct: Any, prefix: tuple[str, ...] = (), base: int = 0) -> list[Member]:
    """The fields of a struct in order, those of an embedded ``base`` record first."""
    out: list[Member] = []
    for name, info in ffi.typeof(struct).fields if isinstance(struct, str) else struct.fields:
        kind, at = info.type, base + info.offset
        if name == "base":
            out += members_of(kind, (*prefix, name), at)
        elif name in ("struct_size", "chain") or name.startswith("pad_"):
            continue
        elif kind.kind == "array":
            keys = tuple((name, i) for i in range(kind.length))
            out.append(Member(name, (*prefix, name), at, kind.length, kind.item is VIEW, keys=keys))
        else:
            out.append(Member(name, (*prefix, name), at, 0, kind is VIEW, kind.cname, ((name, 0),)))
    return out


Place = tuple[int, int, Member]  # where the views of a member begin and end in their run


def runs_of(members: list[Member]) -> list[tuple[int, int, list[Place]]]:
    """(begin, end, places) of stretches of the struct that hold nothing but views."""
    out: list[tuple[int, int, list[Place]]] = []
    for m in members:
        if not m.is_view:
            continue
        if not out or out[-1][1] != m.offset:
            out.append((m.offset, m.offset, []))
        begin, _, places = out[-1]
        end = m.offset + VIEW_BYTES * len(m.keys)
        out[-1] = (begin, end, [*places, (m.offset - begin, end - begin, m)])
    return out


# C type of a scalar field: its code in `struct`.
CODES = {
    "uint8_t": "B",
    "int8_t": "b",
    "uint16_t": "H",
    "int16_t": "h",
    "uint32_t": "I",
    "int32_t": "i",
    "uint64_t": "Q",
    "int64_t": "q",
    "float": "f",
    "double": "d",
}


def scalars_of(struct: str, members: list[Member]) -> tuple[tuple[str, ...], Struct]:
    """(names, format) of the fields that are one number each, read in one go."""
    names, text, at = [], "=", 0
    for m in members:
        if m.is_view or m.count:
            continue
        code = CODES[m.ctype]
        text += f"{m.offset - at}x{code}"
        at = m.offset + Struct("=" + code).size
        names.append(m.name)
    return tuple(names), Struct(text)


def words_of(members: list[Member]) -> frozenset[int]:
    """Where the words of 8 bytes are that these members lie in."""
    size = {True: VIEW_BYTES, False: 4}
    ends = ((m.offset, m.offset + size[m.is_view] * max(m.count, 1)) for m in members)
    return frozenset(at for begin, end in ends for at in range(begin // 8 * 8, end, 8))


def written_out(name: str, lines: list[str], **known: Any) -> Any:
    """The function ``name`` that the lines define, as attrs writes ``__init__``; ``known`` are its globals. For what a
    step does with the same fields each time: a loop over them takes several times as long."""
    made = dict(known)
    exec("\n".join(lines), made)
    return made[name]


def assigner(names: tuple[str, ...]) -> Callable[[object, tuple[Any, ...]], None]:
    """A function that assigns values to attributes."""
    lines = ["def assign(r, values):", f"    {''.join(f'r.{n}, ' for n in names) or '()'} = values"]
    function: Callable[[object, tuple[Any, ...]], None] = written_out("assign", lines)
    return function
