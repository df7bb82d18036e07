"""Sparse attention against a plain double-precision loop."""

import math

import pytest
import torch

from deepinfer_core.caches import CacheView
from deepinfer_core.errors import ShapeContractError
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu.ops import attention, cache

H, D, SCALE = 4, 32, 32**-0.5


def plain(q, kv, indices, sink=None, lengths=None, round_probs=False):
    """One query, one head, one key at a time, in Python floats."""
    q, kv = q.double(), kv.double()
    out = torch.zeros_like(q)
    lse = torch.full(q.shape[:2], math.inf, dtype=torch.float64)
    for t in range(q.shape[0]):
        limit = indices.shape[1] if lengths is None else int(lengths[t])
        keys = [int(i) for i in indices[t, :limit] if 0 <= i < kv.shape[0]]
        for h in range(q.shape[1]):
            if not keys:
                continue
            scores = [float(q[t, h] @ kv[i]) * SCALE for i in keys]
            top = max(scores)
            weights = [math.exp(s - top) for s in scores]
            total = math.fsum(weights)
            lse[t, h] = top + math.log(total)
            if sink is not None:
                gap = float(sink[h]) - top
                total += math.inf if gap > 700 else math.exp(gap)
            if round_probs:
                weights = torch.tensor(weights, dtype=torch.float32).bfloat16().tolist()
            for i, w in zip(keys, weights, strict=True):
                out[t, h] += w / total * kv[i]
    return out, lse


def inputs(rows: int = 6, keys: int = 40, width: int = 12):
    indices = torch.randint(-1, keys + 2, (rows, width), dtype=torch.int32)
    indices[1] = -1
    indices[2, :6] = 7  # duplicates count each time
    return torch.randn(rows, H, D), torch.randn(keys, D), indices


@pytest.mark.parametrize("sink", [None, "normal", "minus", "plus"])
def test_prefill_in_fp32_equals_the_loop(sink):
    q, kv, indices = inputs()
    value = {
        None: None,
        "normal": torch.randn(H),
        "minus": torch.full((H,), -math.inf),
        "plus": torch.full((H,), math.inf),
    }[sink]
    out, lse = attention.sparse_prefill(q, kv, indices, scale=SCALE, sink=value)
    expected, expected_lse = plain(q, kv, indices, value)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(lse.double(), expected_lse, rtol=1e-5, atol=1e-6)
    assert torch.equal(out[1], torch.zeros(H, D))
    assert (lse[1] == math.inf).all()


def test_sink_of_minus_infinity_is_plain_softmax_and_plus_infinity_gives_zero():
    q, kv, indices = inputs()
    none, _ = attention.sparse_prefill(q, kv, indices, scale=SCALE)
    minus, _ = attention.sparse_prefill(q, kv, indices, scale=SCALE, sink=torch.full((H,), -math.inf))
    plus, _ = attention.sparse_prefill(q, kv, indices, scale=SCALE, sink=torch.full((H,), math.inf))
    assert torch.equal(none, minus)
    assert not plus.any()


def test_prefill_with_lengths_ignores_later_columns():
    q, kv, indices = inputs()
    lengths = torch.tensor([0, 1, 5, 12, 3, 7], dtype=torch.int32)
    out, _ = attention.sparse_prefill(q, kv, indices, scale=SCALE, lengths=lengths)
    expected, _ = plain(q, kv, indices, lengths=lengths)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("round_probs", [True, False])
def test_prefill_in_bf16_rounds_probabilities_before_the_sum_when_asked(round_probs):
    q, kv, indices = inputs(rows=16)
    q, kv = q.bfloat16(), kv.bfloat16()
    out, _ = attention.sparse_prefill(q, kv, indices, scale=SCALE, round_probs=round_probs)
    same, _ = plain(q, kv, indices, round_probs=round_probs)
    other, _ = plain(q, kv, indices, round_probs=not round_probs)
    assert out.dtype == torch.bfloat16
    assert (out == same.float().bfloat16()).float().mean() > 0.99
    assert (out == other.float().bfloat16()).float().mean() < 0.9


def test_prefill_of_bf16_queries_rounds_probabilities_by_default_and_of_fp32_does_not():
    q, kv, indices = inputs()
    for dtype, expected in ((torch.bfloat16, True), (torch.float32, False)):
        args = (q.to(dtype), kv.to(dtype), indices)
        default, _ = attention.sparse_prefill(*args, scale=SCALE)
        chosen, _ = attention.sparse_prefill(*args, scale=SCALE, round_probs=expected)
        assert torch.equal(default, chosen)


def test_prefill_over_no_keys_gives_zero_rows():
    q, _, indices = inputs()
    out, lse = attention.sparse_prefill(q, torch.zeros(0, D), indices, scale=SCALE)
    assert not out.any()
    assert (lse == math.inf).all()


def test_prefill_over_no_columns_gives_zero_rows():
    q, kv, indices = inputs()
    view = CacheView(torch.zeros(2, 4, 2 * D, dtype=torch.uint8), "bf16", 4, 8 * D, D)
    for out, lse in (
        attention.sparse_prefill(q, kv, indices[:, :0], scale=SCALE),
        attention.sparse_decode(q, view, indices[:, :0], scale=SCALE),
    ):
        assert not out.any()
        assert (lse == math.inf).all()


def test_prefill_in_turns_equals_all_rows_at_once(monkeypatch):
    q, kv, indices = inputs(rows=9)
    full = attention.sparse_prefill(q, kv, indices, scale=SCALE)
    monkeypatch.setattr(attention, "GATHER_VALUES", 2 * 12 * D)
    turns = attention.sparse_prefill(q, kv, indices, scale=SCALE)
    assert torch.equal(full[0], turns[0])
    assert torch.equal(full[1], turns[1])


def make_caches(backend, extra: str):
    specs = [
        CacheSpec("swa", "swa", [CacheLayer(0, 10, "v41", D)]),
        CacheSpec("main", "main", [CacheLayer(0, 8, extra, D)]),
    ]
    caches = backend.alloc_caches(specs, {"swa": 4, "main": 5})
    window, main = caches.view("swa", 0), caches.view("main", 0)
    cache.store(torch.randn(40, D), window, torch.arange(40, dtype=torch.int32))
    cache.store(torch.randn(40, D), main, torch.arange(40, dtype=torch.int32))
    return window, main


@pytest.mark.parametrize("extra", ["v41", "v41_fp4", "f32"])
@pytest.mark.parametrize("turns", [False, True])
def test_decode_equals_prefill_over_the_dequantised_entries(backend, monkeypatch, extra, turns):
    window, main = make_caches(backend, extra)
    q = torch.randn(7, H, D)
    idx = torch.randint(-1, 40, (7, 9), dtype=torch.int32)
    extra_idx = torch.randint(-1, 40, (7, 5), dtype=torch.int32)
    idx[3], extra_idx[3] = -1, -1
    lengths = torch.randint(1, 10, (7,), dtype=torch.int32)
    everything = torch.arange(40)
    kv = torch.cat([cache.gather(window, everything), cache.gather(main, everything)])
    shown = idx.masked_fill(torch.arange(9) >= lengths[:, None], -1)
    both = torch.cat([shown, torch.where(extra_idx < 0, -1, extra_idx + 40)], dim=1).int()
    sink = torch.randn(H)
    if turns:
        monkeypatch.setattr(attention, "GATHER_VALUES", 3 * 14 * D)
    out, lse = attention.sparse_decode(
        q, window, idx, plan=attention.plan(), scale=SCALE, sink=sink, lengths=lengths, extra=main, extra_idx=extra_idx
    )
    expected, expected_lse = attention.sparse_prefill(q, kv, both, scale=SCALE, sink=sink)
    assert torch.equal(out, expected)
    assert torch.equal(lse, expected_lse)


def test_decode_of_an_unselected_nan_entry_is_unharmed(backend):
    window, _ = make_caches(backend, "v41_fp4")
    window.tensor[0, 0] = 0x7F  # NaN codes in the entry that stands in for absent ones
    out, _ = attention.sparse_decode(
        torch.randn(2, H, D), window, torch.tensor([[3, -1], [-1, -1]], dtype=torch.int32), scale=SCALE
    )
    assert out.isfinite().all()


def test_decode_into_out_returns_it(backend):
    window, _ = make_caches(backend, "v41")
    out = torch.empty(2, H, D)
    got, _ = attention.sparse_decode(
        torch.randn(2, H, D), window, torch.zeros(2, 3, dtype=torch.int32), scale=SCALE, out=out
    )
    assert got is out
    torch.testing.assert_close(out, cache.gather(window, torch.tensor([0])).expand(2, H, D))


@pytest.mark.parametrize(
    ("q", "kv", "indices", "argument"),
    [
        ((2, D), (4, D), (2, 3), "'q'"),
        ((2, H, D), (4, D + 2), (2, 3), "'kv'"),
        ((2, H, D), (4, D), (3, 3), "'indices'"),
    ],
)
def test_prefill_of_misfitting_shapes_names_the_argument(q, kv, indices, argument):
    with pytest.raises(ShapeContractError, match=argument):
        attention.sparse_prefill(torch.zeros(q), torch.zeros(kv), torch.zeros(indices, dtype=torch.int32), scale=SCALE)
