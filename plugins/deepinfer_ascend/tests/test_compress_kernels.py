"""Lowered kernels of the compressor: entries within a rounding of those of the plain ops, and the same ring."""

import pytest
import torch
from executed import MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.plain import plain_op

pytestmark = MARKS
WIDTH, RING, SLOTS = 64, 7, 4
ULP = 2.0**-7


def rings():
    """States of the second of two layers, and all numbers from its first slot's on."""
    state = torch.randn(SLOTS, 2, RING, 2, WIDTH)[:, 1]
    stride = state.stride(0)
    flat = state.as_strided(((SLOTS - 1) * stride + RING * 2 * WIDTH,), (1,))
    return state, flat, {"ring": RING, "stride": stride, "size": flat.numel()}


def sums(counts):
    return torch.tensor([0, *counts], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def test_a_chunk():
    """Chunks that begin inside a group and at its begin, one longer than the ring, one that completes nothing."""
    state, flat, where = rings()
    counts, lengths = [3, 10, 1, 2], [5, 10, 9, 4]
    reserved = [max(1, end // 2 - (end - q) // 2) for q, end in zip(counts, lengths, strict=True)]
    sequence = torch.repeat_interleave(torch.arange(4, dtype=torch.int32), torch.tensor(reserved))
    score, latent, order = torch.randn(16, WIDTH) * 3, torch.randn(16, WIDTH), torch.randperm(16).int()
    slots = torch.tensor([2, 0, 3, 1], dtype=torch.int32)
    given = {
        "score": score, "latent": latent, "order": order, "state_slot": slots, "first_row": sums(counts),
        "ends": sums(lengths), "n": 4, "tokens": 16, **where,
    }  # fmt: skip
    out = torch.empty(len(sequence), WIDTH, dtype=torch.bfloat16)
    rows = {"sequence": sequence, "first_entry": sums(reserved), "entries": len(out), "state": flat.clone()}
    made = execute("compress_chunk", {"width": WIDTH, "ratio": 2}, {"out": out}, **rows, **given)
    kept = execute("ring_chunk", {"width": WIDTH}, {"state": flat}, begin=flat, **given)
    bounds = (sums(counts), sums(lengths), sums(reserved))
    wanted = plain_op("compress.prefill")(score, latent, state, slots, sequence, *bounds, 2, perm=order)
    torch.testing.assert_close(made["out"], wanted, atol=1e-6, rtol=ULP)
    assert (wanted == 0).all(1).tolist().count(True) == 1
    assert torch.equal(kept["state"], flat)


@pytest.mark.slow  # a chunk weighs its groups by the same macro
def test_a_decode_step():
    """Two rows of a sequence, the second completes a group that the first belongs to; a row of none; an empty one."""
    state, flat, where = rings()
    slots, lengths = torch.tensor([2, 2, 0, -1, 3]).int(), torch.tensor([9, 10, 4, 5, 0]).int()
    score, latent = torch.randn(5, WIDTH) * 3, torch.randn(5, WIDTH)
    given = {"state_slot": slots, "lengths": lengths, "rows": 5, **where}
    kept = execute("ring_step", {"width": WIDTH}, {"state": flat}, begin=flat, score=score, latent=latent, **given)
    out = torch.empty(5, WIDTH, dtype=torch.bfloat16)
    made = execute("compress_step", {"width": WIDTH, "ratio": 2}, {"out": out}, state=kept["state"].clone(), **given)
    wanted = plain_op("compress.decode")(score, latent, state, slots, lengths, 2, max_q=2)
    torch.testing.assert_close(made["out"], wanted, atol=1e-6, rtol=ULP)
    assert wanted.any(1).tolist() == [False, True, True, False, False]
    assert torch.equal(kept["state"], flat)


@pytest.mark.parametrize("end", [13, 3])
def test_rings_of_two_sizes(end):
    src, dst = torch.randn(9, 2, WIDTH), torch.randn(5, 2, WIDTH)
    given = {"src": src, "count": min(5, end), "end": end, "large": 9, "small": 5}
    made = execute("ring_copy", {"width": WIDTH}, {"dst": dst}, begin=dst, **given)
    plain_op("compress.state_copy")(src, dst, end)
    assert torch.equal(made["dst"], dst)
