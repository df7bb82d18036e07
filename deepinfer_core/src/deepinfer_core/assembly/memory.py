"""How many cache units fit into ``--kv-memory`` (``spec/engine.md`` 3.1).

Slots first: each running sequence needs one of pool ``swa`` and one of ``state``, whatever its length. What is left
goes into blocks. Unit 0 of every pool is the null unit, which is allocated and never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import frozen

from deepinfer_core.errors import CapacityError
from deepinfer_core.types import CacheSpec

SLOT_FACTOR = 1.2
"""Slots for each sequence of a full step: some are still waiting for their last step to complete."""
SLOT_SHARE = 0.5
"""Slots take at most this share of the memory; beyond it fewer sequences run at once."""
MIN_UNITS = 2
"""The null unit and one to use."""


class UnitSizes(Protocol):
    """What this module needs of a backend."""

    def unit_bytes(self, specs: Sequence[CacheSpec], pool: str) -> int: ...


@frozen
class PoolPlan:
    """Units of each pool, null units included; 0 where the model has no such cache."""

    num_blocks: int
    num_swa_slots: int
    num_state_slots: int
    max_num_seqs: int
    """Sequences in one step; less than asked for when slots are short."""
    block_size: int
    nbytes: int
    warnings: tuple[str, ...] = ()

    @property
    def tokens(self) -> int:
        """Positions that fit at once."""
        return (self.num_blocks - 1) * self.block_size

    def units(self, specs: Sequence[CacheSpec]) -> Mapping[str, int]:
        """Argument of ``Backend.alloc_caches``."""
        counts = {
            "main": self.num_blocks,
            "index": self.num_blocks,
            "swa": self.num_swa_slots,
            "state": self.num_state_slots,
        }
        return {pool: counts[pool] for pool in dict.fromkeys(spec.pool for spec in specs)}


def plan_pools(
    specs: Sequence[CacheSpec],
    backend: UnitSizes,
    *,
    kv_memory: int,
    block_size: int,
    max_num_seqs: int,
    max_model_len: int,
    sequence_bytes: int = 0,
) -> PoolPlan:
    """Share ``kv_memory`` bytes among the pools.

    ``sequence_bytes``: what the sampler keeps for each sequence of a step, and once more: its drafts.

    Raises CapacityError when not even one sequence with one block fits.
    """
    pools = {spec.pool for spec in specs}
    has_blocks = bool(pools & {"main", "index"})
    block = backend.unit_bytes(specs, "main") if has_blocks else 0
    swa = backend.unit_bytes(specs, "swa") if "swa" in pools else 0
    state = backend.unit_bytes(specs, "state") if "state" in pools else 0
    least = MIN_UNITS * (block + swa + state + sequence_bytes)
    if least > kv_memory:
        raise CapacityError(
            f"the caches of one sequence need {_at_least(least)}, kv_memory is {_at_most(kv_memory)}",
            reason=f"2 units of each pool: block {block:,} B, swa slot {swa:,} B, state slot {state:,} B"
            + (f"; drafts {sequence_bytes:,} B" if sequence_bytes else ""),
            remedy=f"set --kv-memory to {_at_least(least)} or more",
            details={"field": "kv_memory", "needed_bytes": least, "available_bytes": kv_memory},
        )
    wanted = int(SLOT_FACTOR * max_num_seqs) + 1
    slots = wanted
    each = swa + state + sequence_bytes
    if each:
        share = int(kv_memory * SLOT_SHARE) if has_blocks else kv_memory
        slots = min(wanted, max(MIN_UNITS, share // each))
        slots = min(slots, (kv_memory - MIN_UNITS * block) // each)
    warnings: list[str] = []
    seqs = min(max_num_seqs, slots - 1)
    if seqs < max_num_seqs:
        what = f"slots of {swa + state:,} B" + (f" and drafts of {sequence_bytes:,} B" if sequence_bytes else "")
        warnings.append(
            f"W_CAPACITY: {seqs} sequences run at once instead of {max_num_seqs}: "
            f"{_at_most(kv_memory)} hold {slots - 1} {what} beside the blocks; raise --kv-memory"
        )
    fixed = slots * (swa + state) + (seqs + 1) * sequence_bytes
    # More blocks than all sequences at full length could use would only cost memory.
    useful = seqs * -(-max_model_len // block_size) + 1
    blocks = useful
    if block:
        blocks = min(useful, (kv_memory - fixed) // block)
    plan = PoolPlan(
        num_blocks=max(blocks, MIN_UNITS),
        num_swa_slots=slots if swa else 0,
        num_state_slots=slots if state else 0,
        max_num_seqs=seqs,
        block_size=block_size,
        nbytes=blocks * block + fixed,
    )
    if plan.tokens < max_model_len:
        warnings.append(
            f"W_CAPACITY: the caches hold {plan.tokens} tokens, less than max_model_len {max_model_len}: "
            "longer requests are refused; raise --kv-memory, or set --max-model-len"
        )
    return PoolPlan(
        plan.num_blocks,
        plan.num_swa_slots,
        plan.num_state_slots,
        plan.max_num_seqs,
        plan.block_size,
        plan.nbytes,
        tuple(warnings),
    )


def _at_least(nbytes: int) -> str:
    """``nbytes`` as a value of the setting, rounded up."""
    return f"{-(-nbytes // (1 << 20))}MiB" if nbytes >= 1 << 20 else f"{nbytes}B"


def _at_most(nbytes: int) -> str:
    """The same, rounded down."""
    return f"{nbytes // (1 << 20)}MiB" if nbytes >= 1 << 20 else f"{nbytes}B"
