"""Chains between two sides, and a compiled library against this package."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from attrs import evolve
from c_library import CLibrary

from deepinfer_contracts import CONTRACTS, ContractInfo, ContractMismatch, Declared, compatible, library_table, verify

# Pinned by hand: fields and chain of 1.0. A change here is a change of the released layout; fields may follow.
LAYOUT = {
    "SchedulerOutputs": (44, "b6700cc271609918"),
    "InputMetadata": (18, "f8ce46d22c2ed356"),
    "InputMetadataV41": (53, "0c2f3ea89ad95851"),
    "SamplerInputs": (27, "e035373373fec079"),
    "SamplerOutput": (27, "05f9f132bc67f469"),
    "EventBatch": (23, "a7716fe282ff4763"),
}


def rebuilt(info: ContractInfo, fields: list[tuple[str, str]]) -> ContractInfo:
    """The record with other fields; its chain by the definition, not by the generator."""
    h = hashlib.sha256(f"{info.name}:{info.version.split('.')[0]}".encode()).digest()[:8]
    chain = [h]
    for name, definition in fields:
        cut = min((definition.index(c) for c in "[/" if c in definition), default=len(definition))
        h = hashlib.sha256(h + f"{name}:{definition[:cut]}:{definition[cut:]}".encode()).digest()[:8]
        chain.append(h)
    return evolve(info, fields=tuple(fields), chain=tuple(int.from_bytes(x, "big") for x in chain))


@pytest.mark.parametrize("name", CONTRACTS)
def test_chain_is_what_the_specification_says(name: str) -> None:
    info = CONTRACTS[name]
    assert rebuilt(info, list(info.fields)) == info
    released, chain = LAYOUT[name]
    assert f"{info.chain[released]:016x}" == chain


def test_compatible_with_appended_fields_both_ways() -> None:
    old = CONTRACTS["EventBatch"]
    new = rebuilt(old, [*old.fields, ("extra", "i32[X]")])
    assert compatible(new, old) == len(old.fields)
    assert compatible(old, new, needed=len(old.fields)) == len(old.fields)
    with pytest.raises(
        ContractMismatch, match=f"{len(old.fields) + 1} fields are needed, {len(old.fields)} are shared"
    ):
        compatible(old, new, needed=len(old.fields) + 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            ("bt_ids", "i64[sum]"),
            "SchedulerOutputs differs at field {at}, bt_ids: core i32[sum], deepinfer-acme i64[sum]",
        ),
        (
            ("bt_ids", "u32[sum]"),
            "SchedulerOutputs differs at field {at}, bt_ids: core i32[sum], deepinfer-acme u32[sum]",
        ),
        (
            ("blocks", "i32[sum]"),
            "SchedulerOutputs differs at field {at}, bt_ids: core i32[sum], deepinfer-acme blocks i32[sum]",
        ),
    ],
    ids=["width", "sign", "rename"],
)
def test_incompatible_field_is_named_with_both_definitions(change: tuple[str, str], text: str) -> None:
    info = CONTRACTS["SchedulerOutputs"]
    at = [n for n, _ in info.fields].index("bt_ids")
    other = rebuilt(info, [*info.fields[:at], change, *info.fields[at + 1 :]])
    with pytest.raises(ContractMismatch) as caught:
        compatible(info, other, plugin_name="deepinfer-acme")
    lines = str(caught.value).splitlines()
    assert lines[0] == "E_CONTRACT: " + text.format(at=at)
    assert lines[1] == f"  reason: core ({info.describe()}), deepinfer-acme ({other.describe()})"
    assert lines[2] == "  remedy: rebuild deepinfer-acme against contract 1.0"
    assert caught.value.field == "bt_ids"


def test_reordered_fields_are_incompatible() -> None:
    info = CONTRACTS["SamplerOutput"]
    fields = list(info.fields)
    fields[4], fields[5] = fields[5], fields[4]
    with pytest.raises(ContractMismatch, match="differs at field 4, sampled_logprob"):
        compatible(info, rebuilt(info, fields))


def test_another_major_is_incompatible() -> None:
    info = CONTRACTS["SamplerOutput"]
    with pytest.raises(ContractMismatch, match=r"another major version: core 1\.0, plugin 2\.0"):
        compatible(info, rebuilt(evolve(info, version="2.0"), list(info.fields)))


def test_manifest_prefix_is_accepted_and_another_is_refused() -> None:
    info = CONTRACTS["SchedulerOutputs"]
    good = {"fields": 14, "chain": f"{info.chain[14]:016x}"}
    assert compatible(info, Declared.from_manifest(info.name, good)) == 14
    wrong = Declared.from_manifest(info.name, {"fields": 14, "chain": f"{info.chain[13]:016x}"})
    with pytest.raises(ContractMismatch, match="differs within the first 14 fields that acme reads"):
        compatible(info, wrong, plugin_name="acme")
    with pytest.raises(ContractMismatch, match="99 fields are needed"):
        compatible(info, Declared(info.name, 99, 0))


@pytest.mark.parametrize("table", [{}, {"fields": "14", "chain": "0" * 16}, {"fields": 14, "chain": "9f31"}])
def test_malformed_manifest_table_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ContractMismatch, match=r"EventBatch: (fields|chain) is"):
        Declared.from_manifest("EventBatch", table)


def test_library_built_from_these_schemas_is_accepted(c_checks: CLibrary) -> None:
    verify(c_checks.ffi, c_checks.lib)
    table = library_table(c_checks.ffi, c_checks.lib)
    assert list(table) == list(CONTRACTS)
    assert all(info.fields == CONTRACTS[name].fields for name, (info, _) in table.items())


def test_library_with_another_field_is_refused_by_name(c_checks: CLibrary) -> None:
    info = CONTRACTS["SamplerInputs"]
    fields = [(n, "u32[N]" if n == "top_k" else d) for n, d in info.fields]
    with pytest.raises(ContractMismatch) as caught:
        verify(c_checks.ffi, c_checks.lib, ours={**CONTRACTS, info.name: rebuilt(info, fields)})
    assert caught.value.field == "top_k"
    assert "deepinfer-contracts u32[N], deepinfer-native i32[N]" in caught.value.what


def test_library_with_fewer_fields_is_refused(c_checks: CLibrary) -> None:
    info = CONTRACTS["SamplerInputs"]
    longer = rebuilt(info, [*info.fields, ("extra", "i32[N]")])
    n = len(longer.fields)
    with pytest.raises(ContractMismatch, match=f"SamplerInputs: {n} fields are needed, {n - 1} are shared"):
        verify(c_checks.ffi, c_checks.lib, ours={info.name: longer})


def test_library_with_other_rules_is_refused(c_checks: CLibrary) -> None:
    info = evolve(CONTRACTS["EventBatch"], semantic_hash="0" * 64)
    with pytest.raises(ContractMismatch, match="EventBatch has the same layout but other rules"):
        verify(c_checks.ffi, c_checks.lib, ours={info.name: info})


def test_library_without_a_record_is_refused(c_checks: CLibrary) -> None:
    extra = evolve(CONTRACTS["EventBatch"], name="Weather")
    with pytest.raises(ContractMismatch, match="deepinfer-native has no record Weather"):
        verify(c_checks.ffi, c_checks.lib, ours={"Weather": extra})
