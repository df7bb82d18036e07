"""The compressor: one answer however a sequence is cut, and the ring survives rewinding."""

import itertools

import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import compress

D, RING = 8, 7


def whole(score: torch.Tensor, latent: torch.Tensor, ratio: int) -> torch.Tensor:
    """Entries of a sequence in fp64, straight from the formula."""
    out = []
    for e in range(score.shape[0] // ratio):
        rows = slice(e * ratio, (e + 1) * ratio)
        w = torch.softmax(score[rows].double(), dim=0)
        out.append((w * latent[rows].double()).sum(0))
    return torch.stack(out) if out else torch.zeros(0, score.shape[1], dtype=torch.float64)


def i32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def run_prefill(score, latent, state, slot, start, end, ratio):
    count = max(1, end // ratio - start // ratio)
    out = compress.prefill(
        score[start:end], latent[start:end], state, i32(slot), None, i32(0, end - start), i32(0, end), i32(0, count),
        ratio, dtype=torch.float32,
    )  # fmt: skip
    done = end // ratio - start // ratio
    assert not out[done:].any()
    return out[:done]


@pytest.mark.parametrize("ratio", [2, 3])
def test_every_cut_into_three_chunks_gives_the_same_entries(ratio):
    score, latent = torch.randn(11, D), torch.randn(11, D)
    expected = whole(score, latent, ratio)
    for a, b in itertools.combinations(range(1, 11), 2):  # every cut, also inside a group
        state = torch.full((3, RING, 2, D), torch.nan)
        parts = [run_prefill(score, latent, state, 1, s, e, ratio) for s, e in ((0, a), (a, b), (b, 11))]
        torch.testing.assert_close(torch.cat(parts).double(), expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("first", range(1, 10))
@pytest.mark.parametrize("step", [1, 2, 3])
def test_prefill_then_decode_steps_equals_one_prefill(first, step):
    ratio, total = 2, 22
    score, latent = torch.randn(total, D), torch.randn(total, D)
    state = torch.full((2, RING, 2, D), torch.nan)
    entries = [run_prefill(score, latent, state, 1, 0, first, ratio)]
    for at in range(first, total, step):
        rows = range(at, min(at + step, total))
        out = compress.decode(
            score[rows], latent[rows], state, i32(*[1] * len(rows)), i32(*[p + 1 for p in rows]), ratio, max_q=step,
            dtype=torch.float32,
        )  # fmt: skip
        for row, p in enumerate(rows):
            if (p + 1) % ratio == 0:
                entries.append(out[row : row + 1])
            else:
                assert not out[row].any()
    oneshot = run_prefill(score, latent, torch.zeros(2, RING, 2, D), 0, 0, total, ratio)
    assert torch.equal(torch.cat(entries), oneshot)


def test_decode_after_rejected_tokens_equals_never_having_run_them():
    score, latent = torch.randn(12, D), torch.randn(12, D)
    state = torch.zeros(1, RING, 2, D)
    run_prefill(score, latent, state, 0, 0, 5, 2)
    wrong = torch.randn(6, D)
    compress.decode(wrong, wrong, state, i32(*[0] * 6), i32(*range(6, 12)), 2, max_q=6)
    out = [
        compress.decode(score[p : p + 1], latent[p : p + 1], state, i32(0), i32(p + 1), 2, max_q=6, dtype=torch.float32)
        for p in range(5, 12)
    ]
    got = torch.cat([out[i] for i, p in enumerate(range(5, 12)) if p % 2])
    torch.testing.assert_close(got.double(), whole(score, latent, 2)[2:], rtol=1e-6, atol=1e-6)


def test_prefill_of_several_sequences_keeps_them_apart():
    lengths, starts = (5, 1, 8), (3, 0, 2)
    score = [torch.randn(n, D) for n in lengths]
    latent = [torch.randn(n, D) for n in lengths]
    alone, together = torch.zeros(4, RING, 2, D), torch.zeros(4, RING, 2, D)
    expected = []
    for i, (n, s) in enumerate(zip(lengths, starts, strict=True)):
        for state in (alone, together):
            if s:
                run_prefill(score[i], latent[i], state, i + 1, 0, s, 2)
        part = run_prefill(score[i], latent[i], alone, i + 1, s, n, 2)
        expected.append(part if part.shape[0] else torch.zeros(1, D))
    q = [n - s for n, s in zip(lengths, starts, strict=True)]
    c = [e.shape[0] for e in expected]
    cut = [torch.cat([x[i][starts[i] :] for i in range(3)]) for x in (score, latent)]
    order = torch.randperm(sum(q))
    shuffled = [torch.empty_like(x).index_copy_(0, order, x) for x in cut]
    got = compress.prefill(
        shuffled[0], shuffled[1], together, i32(1, 2, 3), None, i32(0, *itertools.accumulate(q)),
        i32(0, *itertools.accumulate(lengths)), i32(0, *itertools.accumulate(c)), 2, perm=order, dtype=torch.float32,
    )  # fmt: skip
    assert torch.equal(got, torch.cat(expected))
    assert torch.equal(together, alone)


def test_decode_of_a_negative_slot_writes_nothing():
    state = torch.zeros(2, RING, 2, D)
    out = compress.decode(torch.ones(2, D), torch.ones(2, D), state, i32(-1, -1), i32(2, 4), 2, max_q=1)
    assert not state.any()
    assert not out.any()
    assert out.dtype == torch.bfloat16


def test_decode_rounds_to_bf16_once():
    state = torch.zeros(1, RING, 2, D)
    score, latent = torch.randn(2, D), torch.randn(2, D)
    out = compress.decode(score, latent, state, i32(0, 0), i32(1, 2), 2, max_q=2)
    assert torch.equal(out[1], whole(score, latent, 2)[0].float().bfloat16())


def test_decode_with_a_short_ring_is_refused():
    with pytest.raises(ShapeContractError, match=r"compress\.decode.*at least 7 rows, got 6"):
        compress.decode(torch.zeros(1, D), torch.zeros(1, D), torch.zeros(1, 6, 2, D), i32(0), i32(1), 2, max_q=6)


def test_compress_of_bf16_scores_is_refused():
    x, state = torch.zeros(2, D).bfloat16(), torch.zeros(1, RING, 2, D)
    with pytest.raises(ShapeContractError, match=r"compress\.decode.*float32"):
        compress.decode(x, x, state, i32(0, 0), i32(1, 2), 2, max_q=1)
    with pytest.raises(ShapeContractError, match=r"compress\.prefill.*float32"):
        compress.prefill(x, x, state, i32(0), None, i32(0, 2), i32(0, 2), i32(0, 1), 2)


def test_state_copy_keeps_the_last_positions():
    src = torch.arange(7.0).view(7, 1, 1).expand(7, 2, D).contiguous()
    dst = torch.full((3, 2, D), -1.0)
    compress.state_copy(src, dst, 12)  # positions 9, 10, 11
    assert dst[:, 0, 0].tolist() == [9 % 7, 10 % 7, 11 % 7]
    back = torch.full((7, 2, D), -1.0)
    compress.state_copy(dst, back, 12)
    assert back[:, 0, 0].tolist() == [-1.0, -1.0, 2.0, 3.0, 4.0, -1.0, -1.0]


def test_state_copy_before_the_ring_is_full_copies_what_exists():
    src, dst = torch.randn(7, 2, D), torch.zeros(7, 2, D)
    compress.state_copy(src, dst, 2)
    assert torch.equal(dst[:2], src[:2])
    assert not dst[2:].any()
