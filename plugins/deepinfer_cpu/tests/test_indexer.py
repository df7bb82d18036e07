"""Index scores, selection and candidate blocks."""

import math

import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu.ops import cache, indexer, quant


def i32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def plain_topk(scores: torch.Tensor, k: int, end: list[int]) -> list[list[int]]:
    out = []
    for row, stop in zip(scores.tolist(), end, strict=True):
        seen = [(-s, e) for e, s in enumerate(row[:stop]) if s > -math.inf]
        best = sorted(e for _, e in sorted(seen)[:k])
        out.append(best + [-1] * (k - len(best)))
    return out


@pytest.mark.parametrize("n", [1, 16, 17, 2047, 2048, 2049])
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal"])
def test_topk_equals_a_stable_sort(n, kind):
    scores = torch.randn(4, n)
    if kind == "ties":
        scores = scores.mul_(2).round_()
    if kind == "equal":
        scores.fill_(0.5)
    end = [n, max(1, n // 2), 0, min(n, 5)]
    for k in (1, 16, 512):
        assert indexer.topk(scores, k, end=i32(end)).tolist() == plain_topk(scores, k, end)


def test_topk_never_takes_minus_infinity_or_nan():
    scores = torch.tensor([[1.0, -math.inf, math.nan, 3.0, -math.inf]])
    assert indexer.topk(scores, 4, end=i32([5])).tolist() == [[0, 3, -1, -1]]
    assert indexer.topk(scores, 1, end=i32([5])).tolist() != [[2]]


def test_topk_with_masked_entries_and_more_columns_than_k():
    scores = torch.full((1, 40), -math.inf)
    scores[0, [3, 30]] = torch.tensor([-5.0, -7.0])
    assert indexer.topk(scores, 4, end=i32([40])).tolist() == [[3, 30, -1, -1]]


def test_topk_treats_both_zeros_as_equal():
    scores = torch.tensor([[-0.0, 0.0, -0.0, 0.0]])
    assert indexer.topk(scores, 2, end=i32([4])).tolist() == [[0, 1]]


def test_topk_with_values_and_offset():
    scores = torch.tensor([[0.0, 2.0, 1.0], [5.0, 4.0, 3.0]])
    idx, values = indexer.topk(scores, 2, end=i32([3, 1]), offset=i32([10, 20]), want_values=True)
    assert idx.tolist() == [[11, 12], [20, -1]]
    assert values.tolist() == [[2.0, 1.0], [5.0, -math.inf]]


def test_topk_over_no_columns_is_all_padding():
    assert indexer.topk(torch.zeros(2, 0), 3, end=i32([0, 0])).tolist() == [[-1] * 3] * 2


def test_topk_of_misfitting_end_is_refused():
    with pytest.raises(ShapeContractError, match=r"index\.topk: argument 'end' must be \[2\], got \[3\]"):
        indexer.topk(torch.zeros(2, 4), 1, end=i32([1, 1, 1]))


def plain_logits(q, w, keys):
    """Scores of one row over its keys, in double precision."""
    return (torch.relu(q.double() @ keys.double().t()) * w.double().unsqueeze(1)).sum(0)


def test_logits_over_spans_equal_the_formula():
    q, w, keys = torch.randn(6, 3, 32), torch.randn(6, 3), torch.randn(20, 32)
    ks, ke = [0, 0, 0, 7, 7, 20], [3, 0, 5, 20, 9, 20]
    scores = indexer.logits(q, w, keys, span=(i32(ks), i32(ke)))
    assert scores.shape == (6, 13)
    for t in range(6):
        count = ke[t] - ks[t]
        expected = plain_logits(q[t], w[t], keys[ks[t] : ke[t]])
        torch.testing.assert_close(scores[t, :count].double(), expected, rtol=1e-5, atol=1e-5)
        assert (scores[t, count:] == -math.inf).all()


def test_logits_in_turns_equal_all_rows_at_once(monkeypatch):
    q, w, keys = torch.randn(9, 3, 32), torch.randn(9, 3), torch.randn(20, 32)
    span = (i32([0] * 9), i32(list(range(12, 21))))
    full = indexer.logits(q, w, keys, span=span)
    monkeypatch.setattr(indexer, "SCORE_VALUES", 3 * 20 * 2)
    assert torch.equal(indexer.logits(q, w, keys, span=span), full)


@pytest.mark.parametrize("name", ["index_fp4", "index_mxfp8", "index_fp8", "f32"])
def test_logits_paged_equal_the_formula_over_what_is_stored(backend, name):
    caches = backend.alloc_caches([CacheSpec("index", "index", [CacheLayer(0, 4, name, 32)])], {"index": 7})
    view = caches.view("index", 0)
    keys = torch.randn(28, 32).bfloat16()
    stored = cache.store(keys, view, torch.arange(28, dtype=torch.int32), want_values=True).float()
    q = quant.cast_per_token(torch.randn(3, 2, 32).bfloat16(), fmt="e2m1")
    w = torch.randn(3, 2).bfloat16()
    tables = i32([[5, 1, 3], [2, 6, 4], [0, 0, 0]])
    lens = [11, 5, 0]
    scores = indexer.logits(q, w, view, context_lens=i32(lens), block_table=tables, max_k=12)
    assert scores.shape == (3, 12)
    for t in range(3):
        rows = [int(tables[t, e // 4]) * 4 + e % 4 for e in range(lens[t])]
        expected = plain_logits(q.values[t], w[t], stored[rows])
        torch.testing.assert_close(scores[t, : lens[t]].double(), expected, rtol=1e-5, atol=1e-5)
        assert (scores[t, lens[t] :] == -math.inf).all()


def test_logits_with_candidates_hide_other_blocks():
    q, w, keys = torch.randn(2, 3, 32), torch.randn(2, 3), torch.randn(19, 32)
    span = (i32([0, 0]), i32([19, 10]))
    full = indexer.logits(q, w, keys, span=span)
    cut = indexer.logits(q, w, keys, span=span, candidates=i32([[0, 4], [1, -1]]), block=4)
    assert torch.equal(cut[0, [0, 1, 2, 3, 16, 17, 18]], full[0, [0, 1, 2, 3, 16, 17, 18]])
    assert (cut[0, 4:16] == -math.inf).all()
    assert torch.equal(cut[1, 4:8], full[1, 4:8])
    assert (cut[1, :4] == -math.inf).all()
    assert (cut[1, 8:] == -math.inf).all()


def test_logits_without_their_ranges_are_refused():
    with pytest.raises(ShapeContractError, match="'span'"):
        indexer.logits(torch.zeros(1, 2, 32), torch.zeros(1, 2), torch.zeros(4, 32))


def test_logits_with_misfitting_weights_are_refused():
    with pytest.raises(ShapeContractError, match="'weights'"):
        indexer.logits(torch.zeros(1, 2, 32), torch.zeros(1, 3), torch.zeros(4, 32), span=(i32([0]), i32([4])))


def test_block_max_forces_the_newest_visible_block():
    scores = torch.tensor([[1.0, 5.0, 2.0, 9.0, 3.0, 100.0], [7.0, -1.0, -2.0, 4.0, 6.0, 8.0], [3.0] * 6])
    best, counts = indexer.block_max(scores, i32([5, 2, 0]), 2)
    assert counts.tolist() == [3, 1, 0]
    assert best.tolist() == [[5.0, 9.0, math.inf], [math.inf, -math.inf, -math.inf], [-math.inf] * 3]


def test_candidates_always_hold_the_newest_block_and_are_ascending():
    scores = torch.randn(5, 64)
    valid = i32([64, 63, 57, 9, 1])
    best, counts = indexer.block_max(scores, valid, 8)
    chosen = indexer.topk(best, 3, end=counts)
    for row, v in zip(chosen.tolist(), valid.tolist(), strict=True):
        real = [b for b in row if b >= 0]
        assert (v - 1) // 8 in real
        assert real == sorted(real)
        assert len(real) == min(3, -(-v // 8))


def test_restore_maps_compact_positions_back_in_place():
    compact = i32([[0, 5, 8, -1], [3, 4, 11, 2]])
    candidates = i32([[1, 3, -1], [0, 2, 5]])
    got = indexer.restore(compact, candidates, 4, offset=i32([100, 0]))
    assert got is compact
    assert got.tolist() == [[104, 113, -1, -1], [3, 8, 23, 2]]
