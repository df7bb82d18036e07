"""The schemas as data: enumerations, limits, records with their fields and dimensions, and the op table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

# dtype: (C type, size in bytes, numpy name). A handle is an opaque word in C and an object in Python.
DTYPES: Mapping[str, tuple[str, int, str]] = {
    "bool": ("uint8_t", 1, "bool"),
    "u8": ("uint8_t", 1, "uint8"),
    "i8": ("int8_t", 1, "int8"),
    "u16": ("uint16_t", 2, "uint16"),
    "i16": ("int16_t", 2, "int16"),
    "u32": ("uint32_t", 4, "uint32"),
    "i32": ("int32_t", 4, "int32"),
    "u64": ("uint64_t", 8, "uint64"),
    "i64": ("int64_t", 8, "int64"),
    "f32": ("float", 4, "float32"),
    "f64": ("double", 8, "float64"),
    "handle": ("uint64_t", 8, "object"),
}
ENVELOPE = (("struct_size", "u32"), ("chain", "u64"))


class SchemaError(ValueError):
    """A schema file is malformed; the text names file, field and what is expected."""


@frozen
class Enum:
    name: str
    prefix: str
    doc: str
    values: Mapping[str, int]
    flags: bool = False
    open: bool = False


@frozen
class Limit:
    name: str
    doc: str
    symbol: str = ""
    default: int = 0
    tuple: bool = False


@frozen
class Dim:
    name: str
    value: str  # an expression, or "free": bound by the first array that has it
    doc: str

    @property
    def base(self) -> str:
        return self.name.split("(")[0]


@frozen
class Check:
    text: str
    full: bool


@frozen
class Field:
    name: str
    dtype: str
    doc: str
    shape: tuple[str, ...] | None = None  # None: a scalar
    decode_shape: tuple[str, ...] | None = None  # where it differs from prefill
    per: str = ""  # "", "ratio" or "draft_step"
    ratios: str = "all"  # which ratios: all, sparse, dense
    presence: str = "always"
    space: str = "host"
    enum: str = ""
    since: str = "1.0"
    lifetime: str = ""
    checks: tuple[Check, ...] = ()

    @property
    def is_array(self) -> bool:
        return self.shape is not None

    @property
    def count(self) -> str:
        """Shape as written, with the key of a keyed field: part of the hash chain."""
        text = ""
        if self.shape is not None:
            text = "[" + ", ".join(self.shape) + "]"
            if self.decode_shape is not None:
                text = f"[{', '.join(self.shape)} | {', '.join(self.decode_shape)}]"
        return text + (f"/{self.per}" if self.per else "")

    @property
    def definition(self) -> str:
        return self.dtype + self.count

    @property
    def device_only(self) -> bool:
        return self.space == "device"


@define
class Contract:
    name: str
    file: str
    index: int
    version: str
    lifetime: str
    doc: str
    fields: list[Field]
    dims: dict[str, Dim]
    base: Contract | None = None
    context: str = ""
    prefill_when: str = ""
    semantic_hash: str = ""
    chain: tuple[int, ...] = field(default=())

    @property
    def struct(self) -> str:
        return f"di_{self.file}"

    @property
    def macro(self) -> str:
        return self.file.upper()

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])

    @property
    def all_fields(self) -> list[Field]:
        """Base fields first, without the envelope."""
        return [*(self.base.all_fields if self.base else []), *self.fields]

    @property
    def links(self) -> list[tuple[str, str]]:
        """(name, definition) of every field of the chain, the envelope included."""
        envelope = [(n, t) for n, t in ENVELOPE]
        return envelope + [(f.name, f.definition) for f in self.all_fields]

    @property
    def has_kept(self) -> bool:
        """Whether arrays that are known to pass can be named, by the bits of one number."""
        return len(self.links) <= 64 and not any(f.per for f in self.all_fields)

    @property
    def phase_rule(self) -> str:
        return self.prefill_when or (self.base.phase_rule if self.base else "")

    @property
    def all_dims(self) -> dict[str, Dim]:
        return {**(self.base.all_dims if self.base else {}), **self.dims}


@frozen
class Op:
    id: str
    required: bool
    default: str
    signature: str
    tolerance: str
    doc: str

    @property
    def group(self) -> str:
        return self.id.split(".")[0]


@define
class Schema:
    contracts: list[Contract]
    enums: dict[str, Enum]
    limits: list[Limit]
    capacity: dict[str, int]
    presence: dict[str, str]
    capabilities: dict[str, Any]
    ops: list[Op]

    def contract(self, name: str) -> Contract:
        for c in self.contracts:
            if c.name == name:
                return c
        raise SchemaError(f"no contract named {name!r}; known: {', '.join(c.name for c in self.contracts)}")

    @property
    def symbols(self) -> dict[str, str]:
        """Short name -> limit name."""
        return {x.symbol: x.name for x in self.limits if x.symbol}
