"""Engram: golden hashes and gate values (``spec/model.md`` 2.3, 9)."""

import math

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import engram

IDS = torch.tensor([[5, 17, 300, 99091]], dtype=torch.int32)
GOLDEN = {
    1: ([3889985, 118891433, 135651701, 242768209, 262824918, 383472506], 0),
    14: ([897380, 120779290, 135625108, 250471486, 257776741, 368333250], 1),
}


def multipliers(layer: int) -> torch.Tensor:
    bound = max(1, (np.iinfo(np.int64).max // 99092) // 2)
    drawn = np.random.default_rng(10007 * layer).integers(0, bound, size=4, dtype=np.int64)
    return torch.from_numpy(drawn * 2 + 1)


@pytest.fixture(scope="module")
def primes() -> list[list[int]]:
    """24 for each of two layers: smallest unseen primes from 16,000,000 on, the search restarting for each order."""
    sieve = [n for n in range(15_999_999, 16_001_000) if all(n % d for d in range(2, 4001))]
    seen: set[int] = set()
    out = []
    for _ in range(2):
        layer = []
        for _ in range(3):
            fresh = [n for n in sieve if n not in seen][:8]
            seen.update(fresh)
            layer += fresh
        out.append(layer)
    return out


@pytest.mark.parametrize("layer", [1, 14])
def test_hash_of_the_golden_ids_gives_the_golden_rows(layer, primes):
    expected, which = GOLDEN[layer]
    mine = torch.tensor(primes[which])
    offsets = torch.cumsum(mine, 0) - mine
    rows = engram.hash(IDS, multipliers(layer), mine, offsets)
    assert rows[0, [0, 7, 8, 15, 16, 23]].tolist() == expected
    assert rows.shape == (1, 24)
    assert rows.dtype == torch.int64


def test_hash_of_several_tokens_equals_python_integers(primes):
    ids = torch.randint(0, 99092, (20, 4), dtype=torch.int32)
    m, p = multipliers(1), torch.tensor(primes[0])
    offsets = torch.arange(24) * 1000
    rows = engram.hash(ids, m, p, offsets)
    for t in range(20):
        h = int(ids[t, 0]) * int(m[0])
        for n in range(1, 4):
            h ^= int(ids[t, n]) * int(m[n])
            for head in range(8):
                column = (n - 1) * 8 + head
                assert rows[t, column].item() == h % int(p[column]) + column * 1000


def test_hash_of_a_wrong_window_is_refused():
    with pytest.raises(ShapeContractError, match=r"engram\.hash: argument 'ids' must be \[T, 4\]"):
        engram.hash(IDS[:, :3], multipliers(1), torch.ones(24, dtype=torch.int64), torch.zeros(24, dtype=torch.int64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fetch_dequantises_rows_side_by_side(dtype):
    weight, scale = torch.randn(10, 64).to(torch.float8_e4m3fn), torch.randint(120, 130, (10, 2), dtype=torch.uint8)
    table = engram.prepare(weight, scale.view(torch.float8_e8m0fnu))
    rows = torch.tensor([[3, 9, 3], [0, 1, 2]])
    got = engram.fetch(rows, table, dtype=dtype)
    full = weight.float().view(10, 2, 32) * torch.exp2(scale.float() - 127).unsqueeze(-1)
    assert got.dtype == dtype
    assert torch.equal(got.float(), full.view(10, 64)[rows].view(2, -1))


def test_prepare_shares_the_tables_memory():
    weight, scale = torch.zeros(4, 32, dtype=torch.float8_e4m3fn), torch.zeros(4, 1, dtype=torch.uint8)
    assert engram.prepare(weight, scale).codes.data_ptr() == weight.data_ptr()


def test_prepare_with_a_misfitting_scale_is_refused():
    with pytest.raises(ShapeContractError, match=r"engram\.prepare.*\[4, 2\]"):
        engram.prepare(torch.zeros(4, 64, dtype=torch.float8_e4m3fn), torch.zeros(4, 3, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("dot", "value"), [(0.0, 0.50025), (1e-8, 0.50025), (0.04, 0.549834), (-0.25, 0.3775407), (4.0, 0.8807971)]
)
def test_gate_of_the_golden_dots(dot, value):
    assert engram.gate_of(torch.tensor([dot])).item() == pytest.approx(value, abs=2e-7)


def test_gate_of_minus_zero_is_below_a_half():
    assert engram.gate_of(torch.tensor([-0.0])).item() == pytest.approx(1 - 0.50025, abs=2e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_equals_the_formula_and_skips_masked_rows(dtype):
    tokens, c, h = 5, 4, 32
    x, kv = torch.randn(tokens, c, h).to(dtype), torch.randn(tokens, (c + 1) * h).to(dtype)
    q_weight, k_weight = torch.randn(c, h).bfloat16(), torch.randn(c, h).bfloat16()
    mask = torch.tensor([True, True, False, True, True])
    got = engram.gate(x, kv, engram.prepare_gate(q_weight, k_weight), mask=mask)
    xd, kd = x.double(), kv.double()
    w = q_weight.double() * k_weight.double()
    for t in range(tokens):
        v = kd[t, c * h :]
        for j in range(c):
            k = kd[t, j * h : (j + 1) * h]
            d = (xd[t, j] * w[j] * k).sum() / (xd[t, j].square().mean() * k.square().mean()).sqrt() / math.sqrt(h)
            g = torch.sigmoid(torch.copysign(d.abs().clamp(min=1e-6).sqrt(), d)) if mask[t] else 0.0
            want = xd[t, j] + g * v
            torch.testing.assert_close(
                got[t, j].double(), want, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-5
            )
    assert torch.equal(got[2], x[2])


ONES = engram.prepare_gate(torch.ones(4, 32), torch.ones(4, 32))


def test_gate_norms_use_the_eps_they_are_given():
    """One value of 1, eps 3: rsqrt(1/32 + 3) in both norms."""
    x, kv = torch.zeros(1, 1, 32), torch.zeros(1, 64)
    x[0, 0, 0] = kv[0, 0] = kv[0, 32] = 1.0
    one = torch.ones(1, 32)
    got = engram.gate(x, kv, engram.prepare_gate(one, one, norm_eps=3.0))[0, 0, 0].item() - 1
    d = 1 / (1 / 32 + 3) / math.sqrt(32)
    assert got == pytest.approx(1 / (1 + math.exp(-math.sqrt(d))), rel=1e-5)


def test_gate_with_zero_values_is_the_identity():
    x, kv = torch.randn(3, 4, 32).bfloat16(), torch.randn(3, 5 * 32).bfloat16()
    kv[:, 4 * 32 :] = 0
    assert torch.equal(engram.gate(x, kv, ONES), x)


def test_gate_of_zero_rows_is_finite():
    assert engram.gate(torch.zeros(1, 4, 32), torch.zeros(1, 160), ONES).isfinite().all()


def test_gate_with_misfitting_keys_is_refused():
    with pytest.raises(ShapeContractError, match=r"engram\.gate: argument 'kv'"):
        engram.gate(torch.zeros(1, 4, 32), torch.zeros(1, 128), ONES)


def test_fetch_of_a_table_without_scales_takes_plain_rows():
    table = torch.randn(6, 32).bfloat16()
    rows = torch.tensor([[5, 0], [2, 2]])
    got = engram.fetch(rows, engram.prepare(table), dtype=torch.float32)
    assert torch.equal(got, table.float()[rows].view(2, -1))


def test_prepare_of_codes_without_scales_is_refused():
    with pytest.raises(ShapeContractError, match=r"engram\.prepare: argument 'scale'"):
        engram.prepare(torch.zeros(4, 64, dtype=torch.float8_e4m3fn))
