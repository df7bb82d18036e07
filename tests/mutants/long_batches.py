"""Faults that show in long batches only: what a kernel does behind its first tile, and in the last places of a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mutant import Mutant
from torch import Tensor

Op = Callable[..., Any]
TILE = 128


def rows_behind_the_first_tile(op: Op) -> Op:
    """The rows of the second tile are those of the first once more."""

    def tiled(*args: Any, **options: Any) -> Any:
        result = op(*args, **options)
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor) and part.dim() and part.shape[0] > TILE:
                part[TILE:] = part[: part.shape[0] - TILE].clone() if part.shape[0] <= 2 * TILE else part[:1]
        return result

    return tiled


def seventh_expert_is_dropped(op: Op) -> Op:
    def dispatch(x: Any, idx: Tensor, weight: Tensor, **options: Any) -> Any:
        if idx.shape[1] > 6:
            idx, weight = idx.clone(), weight.clone()
            idx[:, 6], weight[:, 6] = -1, 0.0
        return op(x, idx, weight, **options)

    return dispatch


def mask_ends_at_the_first_tile(op: Op) -> Op:
    def mask(logits: Tensor, bitmask: Tensor, reqs: Tensor, first_row: Tensor, step: int) -> Any:
        op(logits, bitmask[:TILE], reqs[:TILE], first_row, step)
        return logits

    return mask


def states_of_the_first_tile_only(op: Op) -> Op:
    def decode(score: Any, latent: Any, state: Tensor, slots: Tensor, *args: Any, **options: Any) -> Any:
        behind = slots[TILE:].long()
        kept = state[behind].clone()
        result = op(score, latent, state, slots, *args, **options)
        state[behind] = kept
        return result

    return decode


_OPS = (
    "transform.rotary",
    "meta.logical_to_slot",
    "attn.sparse_prefill",
    "attn.sparse_decode",
    "index.logits",
    "gemm.einsum_heads",
    "mhc.post",
    "engram.gate",
    "sample.logprobs",
    "sample.draw",
)
_FILE = "backend/test_long_batches.py"

MUTANTS = [
    *(
        Mutant(
            name=f"long_{op.replace('.', '_')}_repeats_its_tile",
            op=op,
            make=rows_behind_the_first_tile,
            caught_by=_FILE,
            test=op.partition(".")[2],
        )
        for op in _OPS
    ),
    Mutant(
        name="seventh_expert_dropped",
        op="moe.dispatch",
        make=seventh_expert_is_dropped,
        caught_by="backend/test_moe.py",
    ),
    Mutant(name="long_mask_ends_early", op="sample.mask", make=mask_ends_at_the_first_tile, caught_by=_FILE),
    Mutant(name="long_states_end_early", op="compress.decode", make=states_of_the_first_tile_only, caught_by=_FILE),
]
