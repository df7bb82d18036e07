"""Whether two sides mean the same record: prefix hash chains (`verify`, `compatible`) and the error that says no.

`chain[n]` is the prefix hash of the first `n` fields, so two sides agree on their common fields if and only if their
chains agree at `n = min(fields of both)`: appending is compatible, a rename, reorder or another type is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from attrs import frozen


@frozen
class ContractInfo:
    """One record as one side knows it. ``chain[n]`` is the prefix hash of the first ``n`` fields."""

    name: str
    version: str
    struct: str
    semantic_hash: str
    fields: tuple[tuple[str, str], ...]
    chain: tuple[int, ...]

    @property
    def layout_hash(self) -> int:
        return self.chain[-1]

    def describe(self) -> str:
        return f"contract {self.version}, {len(self.fields)} fields, chain {self.layout_hash:016x}"


@frozen
class Declared:
    """What a manifest says (`[contracts.<name>]`): it reads the first ``fields`` fields, whose chain is ``chain``."""

    name: str
    fields: int
    chain: int

    @classmethod
    def from_manifest(cls, name: str, table: Mapping[str, Any]) -> Declared:
        """``table``: ``{"fields": 14, "chain": "9f31c05be2a4d7f0"}``. Raises ContractMismatch if malformed."""
        fields, chain = table.get("fields"), table.get("chain")
        if not isinstance(fields, int) or isinstance(fields, bool) or fields < 0:
            raise ContractMismatch(
                f"{name}: fields is {fields!r}, expected a count", remedy="declare the number of leading fields read"
            )
        try:
            number = int(str(chain), 16) if len(str(chain)) == 16 else -1
        except ValueError:
            number = -1
        if number < 0:
            raise ContractMismatch(
                f"{name}: chain is {chain!r}, expected 16 hexadecimal digits",
                remedy=f"copy chain {fields} of {name} from docs/reference/contracts",
            )
        return cls(name, fields, number)


class ContractMismatch(Exception):
    """Two sides disagree on a record. The text is what, reason and remedy, for the person at the terminal."""

    code: ClassVar[str] = "E_CONTRACT"

    def __init__(self, what: str, *, contract: str = "", field: str = "", reason: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what, self.contract, self.field, self.reason, self.remedy = what, contract, field, reason, remedy

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.reason:
            lines.append(f"  reason: {self.reason}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


def first_difference(a: ContractInfo, b: ContractInfo) -> int | None:
    """Index of the first common field that differs; None if one is a prefix of the other."""
    for i, (x, y) in enumerate(zip(a.fields, b.fields, strict=False)):
        if x != y:
            return i
    return None


def compatible(
    host: ContractInfo,
    plugin: ContractInfo | Declared,
    needed: int = 0,
    *,
    host_name: str = "core",
    plugin_name: str = "plugin",
) -> int:
    """Number of leading fields that both sides share, at least ``needed``. Raises ContractMismatch.

    ``plugin`` is a full description, or what a manifest declares (then all declared fields are needed).
    Source: `spec/plugins.md` 6.
    """
    if host.name != plugin.name:
        raise ContractMismatch(f"{plugin_name} offers {plugin.name} for {host.name}", contract=host.name)
    if isinstance(plugin, Declared):
        return _declared(host, plugin, max(needed, plugin.fields), host_name, plugin_name)
    n = min(len(host.fields), len(plugin.fields))
    if host.chain[n] != plugin.chain[n]:
        raise _differs(host, plugin, host_name, plugin_name)
    if n < needed:
        raise _too_short(host.name, n, needed, host, host_name, plugin_name)
    return n


def _declared(host: ContractInfo, plugin: Declared, needed: int, host_name: str, plugin_name: str) -> int:
    if plugin.fields > len(host.fields) or needed > len(host.fields):
        raise _too_short(host.name, len(host.fields), needed, host, host_name, plugin_name)
    if host.chain[plugin.fields] != plugin.chain:
        raise ContractMismatch(
            f"{host.name} differs within the first {plugin.fields} fields that {plugin_name} reads",
            contract=host.name,
            reason=f"{host_name} {host.describe()}: prefix {host.chain[plugin.fields]:016x};"
            f" {plugin_name} declares {plugin.chain:016x}",
            remedy=f"rebuild {plugin_name} against contract {host.version}",
        )
    return plugin.fields


def _too_short(
    name: str, have: int, need: int, host: ContractInfo, host_name: str, plugin_name: str
) -> ContractMismatch:
    return ContractMismatch(
        f"{name}: {need} fields are needed, {have} are shared",
        contract=name,
        field=host.fields[have][0] if have < len(host.fields) else "",
        reason=f"{host_name} {host.describe()}",
        remedy=f"upgrade {host_name} or {plugin_name}, whichever has fewer fields",
    )


def _differs(host: ContractInfo, plugin: ContractInfo, host_name: str, plugin_name: str) -> ContractMismatch:
    at = first_difference(host, plugin)
    reason = f"{host_name} ({host.describe()}), {plugin_name} ({plugin.describe()})"
    remedy = f"rebuild {plugin_name} against contract {host.version}"
    if at is None:
        return ContractMismatch(
            f"{host.name} has another major version: {host_name} {host.version}, {plugin_name} {plugin.version}",
            contract=host.name,
            reason=reason,
            remedy=remedy,
        )
    (ours, our_type), (theirs, their_type) = host.fields[at], plugin.fields[at]
    seen = f"{plugin_name} {their_type}" if ours == theirs else f"{plugin_name} {theirs} {their_type}"
    return ContractMismatch(
        f"{host.name} differs at field {at}, {ours}: {host_name} {our_type}, {seen}",
        contract=host.name,
        field=ours,
        reason=reason,
        remedy=remedy,
    )


def library_table(ffi: Any, lib: Any) -> dict[str, tuple[ContractInfo, int]]:
    """Records that a compiled library exports (`di_contracts`): name -> (description, size of the struct)."""
    count = ffi.new("int *")
    table = lib.di_contracts(count)
    out = {}
    for i in range(count[0]):
        row = table[i]
        n = row.field_count
        texts = [ffi.string(row.fields[k]).decode() for k in range(n)]
        name, version = ffi.string(row.name).decode(), ffi.string(row.version).decode()
        info = ContractInfo(
            name=name,
            version=version,
            struct="",
            semantic_hash=ffi.string(row.semantic_hash).decode(),
            fields=tuple((t.split(":", 1)[0], t.split(":", 1)[1]) for t in texts),
            chain=tuple(row.chain[k] for k in range(n + 1)),
        )
        out[name] = (info, int(row.record_size))
    return out


def verify(
    ffi: Any, lib: Any, *, name: str = "deepinfer-native", ours: Mapping[str, ContractInfo] | None = None
) -> None:
    """Refuse a library built from other contracts than this package. Call it straight after import.

    Layout and semantic hashes must be equal, as core Python and its library ship together, and every struct is touched,
    because cffi reports a wrong layout only when a type is first used. ``ours``: the expected records, by default the
    installed ones. Raises ContractMismatch naming record, first differing field and both definitions.
    """
    if ours is None:
        from deepinfer_contracts._chains import CONTRACTS  # a cycle otherwise: _chains is made of ContractInfo

        ours = CONTRACTS
    theirs = library_table(ffi, lib)
    package, remedy = "deepinfer-contracts", f"rebuild {name} against the installed deepinfer-contracts"
    for record, info in ours.items():
        if record not in theirs:
            raise ContractMismatch(f"{name} has no record {record}", contract=record, remedy=remedy)
        other, size = theirs[record]
        shared = compatible(info, other, host_name=package, plugin_name=name)
        if not len(info.fields) == len(other.fields) == shared:
            raise _too_short(record, shared, max(len(info.fields), len(other.fields)), info, package, name)
        if info.semantic_hash != other.semantic_hash:
            raise ContractMismatch(
                f"{record} has the same layout but other rules in {package} {info.version} and {name} {other.version}",
                contract=record,
                reason=f"semantic hash {info.semantic_hash[:16]} against {other.semantic_hash[:16]}",
                remedy=remedy,
            )
        _touch(ffi, info, size, name, remedy)


def _touch(ffi: Any, info: ContractInfo, size: int, name: str, remedy: str) -> None:
    try:
        declared = ffi.sizeof(info.struct)
        fields = ffi.typeof(info.struct).fields
    except Exception as exc:  # cffi raises its own VerificationError, without a common base, for a wrong layout
        raise ContractMismatch(
            f"{info.name}: the declarations of {name} do not fit its library",
            contract=info.name,
            reason=str(exc),
            remedy=remedy,
        ) from exc
    if declared != size or not fields:
        raise ContractMismatch(
            f"{info.name}: {name} declares {declared} bytes, its library has {size}", contract=info.name, remedy=remedy
        )
