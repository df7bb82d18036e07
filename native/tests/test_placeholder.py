"""The record of a rank without work is valid by the contract, and names nothing but the null units."""

import numpy as np
import pytest
from native_driver import VOCAB, small_config

from deepinfer_contracts import ContractViolation, Level, StepKind
from deepinfer_native import placeholder_inputs
from deepinfer_native.errors import ArgumentError

CASES = {
    "v41": {},
    "drafts": {"num_draft": 3, "depth": 2},
    "no_pools": {"num_swa_slots": 0, "num_state_slots": 0, "window": 0},
    "ngrams": {"ngram": 3, "ngram_table": np.arange(VOCAB, dtype=np.int32), "ngram_pad": 5},
    "common": {"inputs": "InputMetadata"},
    "tables_by_row": {"csr_tables": False},
    "prefix_cache": {"prefix_cache": True},
    "mask": {"replay_mode": "mask", "replay_keep": 9},
    "compact": {"replay_mode": "compact", "replay_keep": 9},
    "one_ratio": {"ratios_sparse": (1,), "ratios_dense": ()},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", [StepKind.DECODE, StepKind.PREFILL])
def test_placeholder_of_any_configuration_is_valid(case, kind):
    config = small_config(**CASES[case])
    record = placeholder_inputs(config, kind)
    record.validate(config.limits, Level.FULL)
    assert (record.num_reqs, record.total_q, record.is_prompt) == (1, 1, int(kind == StepKind.PREFILL))
    assert (record.input_ids.tolist(), record.positions.tolist()) == ([0], [0])


def test_decode_placeholder_uses_null_units_and_is_masked():
    m = placeholder_inputs(small_config())
    assert m.valid_token_mask.tolist() == [False]
    assert m.query_indices.tolist() == [998244353]
    assert (m.state_slot_idx.tolist(), m.swa_slot_idx.tolist(), m.slot_swa.tolist()) == ([0], [0], [0])
    assert not m.block_tables.any()
    assert {r: s.tolist() for r, s in m.slot_main.items()} == {1: [0], 2: [-1]}


def test_prefill_placeholder_stores_into_the_null_block_and_reads_zeros():
    m = placeholder_inputs(small_config(), StepKind.PREFILL)
    assert {r: s.tolist() for r, s in m.slot_main.items()} == {1: [0], 2: [-1]}
    assert {r: s.tolist() for r, s in m.load_main.items()} == {1: [[-1, 0, 1, 0]], 2: [[-1, 0, 1, 0]]}
    assert m.load_swa.tolist() == [[-1, 0, 8, 0]]


def test_placeholder_query_without_its_mask_is_refused():
    config = small_config()
    m = placeholder_inputs(config)
    m.valid_token_mask[:] = True
    with pytest.raises(ContractViolation) as caught:
        m.validate(config.limits, Level.FULL)
    assert caught.value.field == "query_indices"


def test_placeholder_of_a_joint_step_is_refused():
    with pytest.raises(ArgumentError, match="kind"):
        placeholder_inputs(small_config(), StepKind.JOINT)


def test_placeholder_of_persistent_tables_names_the_null_row():
    m = placeholder_inputs(small_config(csr_tables=False))
    assert m.block_tables is None
    assert m.row_slot_idx.tolist() == [0]
