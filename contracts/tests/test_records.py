"""The record classes, the limits and the text of a violation."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from recorded import limits, record

import deepinfer_contracts
from deepinfer_contracts import (
    CLAIMS,
    CONTRACTS,
    ContractViolation,
    InputMetadata,
    InputMetadataV41,
    Level,
    SamplerOutput,
)


@pytest.mark.parametrize("name", CONTRACTS)
def test_record_has_slots_and_a_keyword_for_every_field(name: str) -> None:
    cls = getattr(deepinfer_contracts, name)
    names = [a.name for a in attrs.fields(cls)]
    assert names == list(cls.FIELDS) == [n for n, _ in CONTRACTS[name].fields[2:]]
    assert not hasattr(cls(), "__dict__")
    assert CONTRACTS[name].layout_hash == cls.CHAIN


def test_v41_inputs_are_inputs() -> None:
    assert issubclass(InputMetadataV41, InputMetadata)
    assert InputMetadataV41.FIELDS[: len(InputMetadata.FIELDS)] == InputMetadata.FIELDS


def test_has_tells_present_fields_from_absent_and_unknown_ones() -> None:
    r = SamplerOutput(sampled_ids=np.zeros(1, np.int32))
    assert r.has("sampled_ids")
    assert not r.has("verified_ids")
    assert not r.has("a_field_of_next_year")


def test_violation_names_contract_field_check_values_and_step() -> None:
    r = record("decode", "InputMetadataV41")
    r.ks = None
    r.klen[2][4] += 1
    with pytest.raises(ContractViolation) as caught:
        r.validate(limits(), Level.FULL, step_id=812)
    e = caught.value
    assert (e.contract, e.field, e.check, e.step_id) == (
        "InputMetadataV41",
        "klen",
        "all(klen[r] == (positions + 1) // r)",
        812,
    )
    assert e.values == {"index": 4, "value": int(r.klen[2][4]), "ratio": 2}
    assert str(e).startswith("InputMetadataV41.klen violates 'all(klen[r] == (positions + 1) // r)' (index 4, value ")
    assert str(e).endswith("ratio 2) in step 812")


def test_missing_array_is_a_presence_violation() -> None:
    r = record("prefill", "InputMetadataV41")
    r.cu_seqlens_k = None
    with pytest.raises(ContractViolation, match="cu_seqlens_k violates 'presence prefill'"):
        r.validate(limits())


def test_array_of_the_other_phase_is_a_presence_violation() -> None:
    r = record("decode", "InputMetadataV41")
    r.swa_pivots = np.zeros((r.total_q, 4), np.int32)
    with pytest.raises(ContractViolation, match="swa_pivots violates 'presence prefill, cap:window'"):
        r.validate(limits())


def test_array_of_the_other_byte_order_is_a_dtype_violation() -> None:
    r = record("decode", "InputMetadataV41")
    r.positions = r.positions.astype(r.positions.dtype.newbyteorder())
    with pytest.raises(ContractViolation, match="positions violates 'dtype i32'"):
        r.validate(limits())


def test_level_off_accepts_anything_and_boundary_skips_uniqueness() -> None:
    r = record("decode", "SchedulerOutputs")
    r.seq_uid[1] = r.seq_uid[0]
    r.validate(limits(), Level.BOUNDARY)
    with pytest.raises(ContractViolation, match=r"seq_uid violates 'unique\(seq_uid\)'"):
        r.validate(limits(), Level.FULL)
    r.seqlens_q = None
    r.validate(limits(), Level.OFF)


def test_empty_step_is_valid() -> None:
    r = record("decode", "SchedulerOutputs")
    for name, definition in CONTRACTS["SchedulerOutputs"].fields[2:]:
        if definition.endswith("[N]"):
            setattr(r, name, getattr(r, name)[:0])
    r.num_reqs = r.num_decode_reqs = r.num_batched_tokens = r.sum_qk = r.min_k = r.max_k = 0
    r.flags = 1
    r.bt_offsets, r.bt_ids = np.zeros(1, np.int32), np.zeros(0, np.int32)
    r.validate(limits(), Level.FULL)


def test_claims_name_features_formats_and_optional_ops() -> None:
    assert {"feature:graphs", "kv:v41_fp4"} <= CLAIMS
    assert not any(f"op:{o.id}" in CLAIMS for o in deepinfer_contracts.OPS.values() if o.required)
