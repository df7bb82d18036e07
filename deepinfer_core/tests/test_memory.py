"""plan_pools: the sum stays within the budget, and a budget that is too small says what is needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deepinfer_core.assembly.memory import PoolPlan, plan_pools
from deepinfer_core.errors import CapacityError
from deepinfer_core.types import CacheLayer, CacheSpec

SPECS = [
    CacheSpec("main", "main", [CacheLayer(0, 64, "v41", 64)]),
    CacheSpec("index", "index", [CacheLayer(0, 64, "index_fp4", 32)]),
    CacheSpec("swa", "swa", [CacheLayer(0, 33, "v41", 64)]),
    CacheSpec("state", "state", [CacheLayer(0, 3, "f32", 64)]),
]


class Sizes:
    """1000 bytes a block, 300 a swa slot, 100 a state slot."""

    def unit_bytes(self, specs: Sequence[CacheSpec], pool: str) -> int:
        return {"main": 1000, "index": 1000, "swa": 300, "state": 100}[pool]


def plan(kv_memory: int, *, seqs: int = 10, length: int = 1280, specs: Sequence[CacheSpec] = SPECS) -> PoolPlan:
    return plan_pools(specs, Sizes(), kv_memory=kv_memory, block_size=128, max_num_seqs=seqs, max_model_len=length)


@pytest.mark.parametrize("kv_memory", [2800, 3000, 5000, 10_000, 50_000, 10**6])
def test_pools_stay_within_the_memory(kv_memory: int) -> None:
    made = plan(kv_memory)
    assert made.num_blocks * 1000 + made.num_swa_slots * 300 + made.num_state_slots * 100 == made.nbytes <= kv_memory
    assert made.num_blocks >= 2
    assert made.num_swa_slots == made.num_state_slots >= made.max_num_seqs + 1


def test_ample_memory_is_not_used_up() -> None:
    made = plan(10**9)
    assert (made.num_blocks, made.num_swa_slots, made.max_num_seqs) == (101, 13, 10)
    assert made.warnings == ()


def test_too_little_memory_names_needed_and_available() -> None:
    with pytest.raises(CapacityError) as caught:
        plan(2799)
    assert caught.value.details == {"field": "kv_memory", "needed_bytes": 2800, "available_bytes": 2799}
    assert caught.value.what == "the caches of one sequence need 2800B, kv_memory is 2799B"
    assert "swa slot 300 B" in caught.value.reason


def test_short_slots_lower_the_sequences_and_say_so() -> None:
    made = plan(10_000, seqs=256)
    assert made.max_num_seqs == 11
    assert made.warnings[0].startswith("W_CAPACITY: 11 sequences run at once instead of 256")


def test_pool_smaller_than_a_sequence_is_a_warning() -> None:
    assert "hold 128 tokens, less than max_model_len 1280" in plan(2800).warnings[-1]


def test_units_name_only_the_pools_of_the_model() -> None:
    made = plan(10_000, specs=SPECS[:1])
    assert (made.num_swa_slots, made.num_state_slots) == (0, 0)
    assert made.units(SPECS[:1]) == {"main": 10}
    assert plan(50_000).units(SPECS) == {"main": 44, "index": 44, "swa": 13, "state": 13}
