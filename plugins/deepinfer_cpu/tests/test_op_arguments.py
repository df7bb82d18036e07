"""Calls at the edges: no rows, shapes that torch would broadcast, dtypes that it would convert."""

import math

import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import engram, gemm, mhc, moe, norm, quant, transform


def sublayer():
    return mhc.prepare(torch.randn(24, 128), torch.ones(3), torch.randn(24))


def test_mhc_of_no_rows_is_empty():
    x, a, post, comb = mhc.pre(torch.zeros(0, 4, 32), torch.zeros(0, 4), sublayer())
    assert [tuple(t.shape) for t in (x, a, post, comb)] == [(0, 32), (0, 4), (0, 4), (0, 4, 4)]


def test_engram_of_no_rows_is_empty():
    primes = torch.tensor([7, 11, 13])
    rows = engram.hash(torch.zeros(0, 4, dtype=torch.int32), torch.ones(4, dtype=torch.int64), primes, primes)
    assert rows.shape == (0, 3)
    table = engram.prepare(torch.zeros(5, 64).to(torch.float8_e4m3fn), torch.zeros(5, 2, dtype=torch.uint8))
    assert engram.fetch(rows, table).shape == (0, 192)


def test_cast_with_fp32_scales_divides_once():
    """448 / amax as one division: the reciprocal of amax, rounded, times 448 gives other codes at ties."""
    x = torch.randn(64, 128)
    q = quant.cast_per_token(x, group=128, sf="f32")
    amax = x.abs().amax(1, keepdim=True)
    scaled = x * (torch.tensor(448.0) / amax)
    assert torch.equal(q.data, scaled.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8))


@pytest.mark.parametrize(
    "call",
    [
        lambda: quant.cast_per_token(torch.zeros(2, 32), fmt="e5m2"),
        lambda: quant.cast_per_token(torch.zeros(2, 32), group=0),
        lambda: quant.cast_per_token(torch.zeros(2, 32, dtype=torch.int32)),
        lambda: norm.rms(torch.zeros(2, 32), torch.ones(2, 32), eps=0.0),
        lambda: transform.fused(torch.zeros(2, 32), norm=(torch.ones(1), 0.0)),
        lambda: transform.rope_table(4, 15, theta=1e4),
        lambda: gemm.grouped(torch.zeros(3, 32), quant.prepare_weight("w", [torch.zeros(4, 32)], use="experts"), [4]),
        lambda: moe.swiglu(torch.zeros(3, 64), clamp=1.0, weight=torch.ones(1)),
        lambda: mhc.head(torch.zeros(3, 4, 32), torch.zeros(1, 4)),
        lambda: engram.prepare_gate(torch.zeros(4, 32), torch.zeros(1, 32)),
    ],
)
def test_op_of_what_torch_would_accept_is_refused(call):
    with pytest.raises(ShapeContractError):
        call()


def test_out_of_another_shape_is_left_alone():
    out = torch.full((3, 4), math.nan)
    with pytest.raises(ShapeContractError, match=r"argument 'out' must be \[1, 4\], got \[3, 4\]"):
        gemm.dense(torch.zeros(1, 32), quant.prepare_weight("w", torch.zeros(4, 32)), out=out)
    assert out.isnan().all()
