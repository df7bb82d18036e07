"""RMS norm, rotary tables and the staged transform."""

import math

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu.ops import norm, quant, transform

YARN = {"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}
FREQUENCIES = [
    (0, 1.0, 1.0), (1, 6.876560219e-01, 7.498942093e-01), (15, 3.635538584e-03, 1.333521432e-02),
    (16, 2.265625000e-03, 1.000000000e-02), (20, 2.969777783e-04, 3.162277660e-03),
    (24, 1.953125000e-05, 1.000000000e-03), (25, 5.372312671e-06, 7.498942093e-04),
    (31, 5.680529037e-07, 1.333521432e-04),
]  # fmt: skip


def test_rms_equals_double_precision_rounded_once():
    x, w = torch.randn(5, 96).bfloat16(), torch.randn(96).bfloat16()
    y, q = norm.rms(x, w, eps=1e-20)
    xd = x.double()
    expected = (xd * (xd.square().mean(-1, keepdim=True) + 1e-20).rsqrt() * w.double()).bfloat16()
    assert q is None
    assert y.dtype == torch.bfloat16
    assert (y != expected).float().mean() < 0.01
    torch.testing.assert_close(y, expected, rtol=2**-7, atol=0)


def test_rms_of_fp32_is_not_rounded():
    x, w = torch.randn(5, 96), torch.randn(96)
    y, _ = norm.rms(x, w, eps=1e-20)
    torch.testing.assert_close(y.double(), x.double() / x.double().square().mean(-1, keepdim=True).sqrt() * w.double())


def test_rms_of_zero_rows_is_zero():
    y, _ = norm.rms(torch.zeros(2, 32), torch.ones(32), eps=1e-20)
    assert torch.equal(y, torch.zeros(2, 32))


def test_rms_with_residual_adds_in_place_first():
    x, residual = torch.randn(3, 32).bfloat16(), torch.randn(3, 32).bfloat16()
    total = residual + x
    y, _ = norm.rms(x, torch.ones(32), eps=1e-20, residual=residual)
    assert torch.equal(residual, total)
    assert torch.equal(y, norm.rms(total, torch.ones(32), eps=1e-20)[0])


def test_rms_with_cast_quantises_the_rounded_value():
    x = torch.randn(3, 64).bfloat16()
    y, _ = norm.rms(x, torch.ones(64), eps=1e-20)
    none, q = norm.rms(x, torch.ones(64), eps=1e-20, cast=("e4m3", 32, "ue8m0"), want_bf16=False)
    assert none is None
    assert torch.equal(q.data, quant.cast_per_token(y).data)


def test_rms_with_a_short_weight_is_refused():
    with pytest.raises(ShapeContractError, match=r"norm\.rms: argument 'w' must be \[64\], got \[32\]"):
        norm.rms(torch.zeros(1, 64), torch.ones(32), eps=1e-20)


@pytest.mark.parametrize(("i", "yarn", "plain"), FREQUENCIES)
def test_rope_frequencies_equal_the_golden_ones(i, yarn, plain):
    assert transform.rope_frequencies(64, 160000.0, YARN)[i] == pytest.approx(yarn, rel=1e-9)
    assert transform.rope_frequencies(64, 10000.0, None)[i] == pytest.approx(plain, rel=1e-9)


def test_rope_table_uses_fp32_products_of_position_and_frequency():
    table = transform.rope_table(2000, 64, theta=10000.0)
    f = np.float32(10000.0 ** (-2 * 7 / 64))
    angle = float(np.float32(1999) * f)
    assert table[1999, 7].item() == np.float32(math.cos(angle))
    assert table[1999, 32 + 7].item() == np.float32(math.sin(angle))


def rotate(x: np.ndarray, table: np.ndarray, positions: list[int], conjugate: bool) -> np.ndarray:
    """Pair by pair, each fused multiply-add exact in double precision and rounded to fp32."""
    size = table.shape[1]
    y = x.copy()
    for t in range(x.shape[0]):
        for i in range(size // 2):
            c, s = table[positions[t], i], table[positions[t], size // 2 + i]
            s = -s if conjugate else s
            at = x.shape[-1] - size + 2 * i
            x0, x1 = x[t, ..., at], x[t, ..., at + 1]
            y[t, ..., at] = (x0.astype(np.float64) * c - (x1 * s).astype(np.float64)).astype(np.float32)
            y[t, ..., at + 1] = (x0.astype(np.float64) * s + (x1 * c).astype(np.float64)).astype(np.float32)
    return y


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("shape", [(5, 32), (5, 3, 32), (1, 12, 128)])
def test_rotary_turns_adjacent_pairs_of_the_last_dimensions(conjugate, shape):
    table = transform.rope_table(50, 16, theta=10000.0)
    positions = [3, 0, 49, 17, 20][: shape[0]]
    x = torch.randn(shape)
    expected = rotate(x.numpy(), table.numpy(), positions, conjugate)
    for kind in (torch.int32, torch.int64):
        got = transform.rotary(x, (table, torch.tensor(positions, dtype=kind), conjugate))
        assert np.array_equal(got.numpy(), expected)
    as_bf16 = transform.rotary(x.bfloat16(), (table, torch.tensor(positions), conjugate))
    exact = rotate(x.bfloat16().float().numpy(), table.numpy(), positions, conjugate)
    assert torch.equal(as_bf16, torch.from_numpy(exact).bfloat16())


def test_rotary_forward_then_conjugate_is_within_rounding():
    table = transform.rope_table(1000, 16, theta=10000.0)
    rows = transform.rope_rows(table, torch.arange(0, 1000, 9))
    x = torch.randn(112, 4, 32)
    back = transform.rotary(transform.rotary(x, (rows, False)), (rows, True))
    torch.testing.assert_close(back, x, rtol=0, atol=2e-6)


def test_rotary_leaves_its_input_alone_unless_out_is_the_input():
    rows = transform.rope_rows(transform.rope_table(8, 16, theta=10000.0), torch.tensor([5]))
    x = torch.randn(1, 32)
    kept = x.clone()
    y = transform.rotary(x, (rows, False))
    assert torch.equal(x, kept)
    assert transform.rotary(x, (rows, False), out=x) is x
    assert torch.equal(x, y)


def test_hadamard_equals_the_matrix_and_undoes_itself():
    matrix = torch.tensor([[1.0]])
    while matrix.shape[0] < 16:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    x = torch.randn(3, 2, 16)
    y = transform.hadamard(x, 0.25)
    torch.testing.assert_close(y, x @ matrix * 0.25)
    torch.testing.assert_close(transform.hadamard(y, 0.25), x)


def make_view(backend, name: str):
    return backend.alloc_caches([CacheSpec("swa", "swa", [CacheLayer(0, 8, name, 64)])], {"swa": 2}).view("swa", 0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("use_norm", [False, True])
@pytest.mark.parametrize("use_rope", [False, True])
@pytest.mark.parametrize("use_hadamard", [False, True])
@pytest.mark.parametrize("sink", ["none", "cast", "store"])
def test_fused_equals_its_stages_one_by_one(backend, dtype, use_norm, use_rope, use_hadamard, sink):
    x, w = torch.randn(6, 64).to(dtype), torch.randn(64)
    kept = x.clone()
    rows = transform.rope_rows(transform.rope_table(40, 16, theta=10000.0), torch.arange(6) * 7)
    slots = torch.tensor([0, 5, -1, 12, 3, 9], dtype=torch.int32)
    view, other = make_view(backend, "v41"), make_view(backend, "v41")
    y = norm.rms(x, w, eps=1e-20)[0] if use_norm else x
    y = transform.rotary(y, (rows, False)) if use_rope else y
    y = transform.hadamard(y, 0.125) if use_hadamard else y
    result, copy = transform.fused(
        x,
        norm=(w, 1e-20) if use_norm else None,
        rope=(rows, False) if use_rope else None,
        hadamard=0.125 if use_hadamard else None,
        cast=("e4m3", 32, "ue8m0") if sink == "cast" else None,
        store=(view, slots) if sink == "store" else None,
        copy_stage="transform" if sink == "none" else "cast_back",
    )
    assert torch.equal(x, kept)
    if sink == "none":
        assert torch.equal(result, y)
        assert torch.equal(copy, y)
        return
    q = quant.cast_per_token(y)
    assert torch.equal(copy, q.values.to(dtype))
    if sink == "cast":
        assert torch.equal(result.data, q.data)
        return
    assert result is None
    backend.cache.store(y, other, slots)
    assert torch.equal(view.tensor, other.tensor)


def test_fused_copy_at_norm_is_from_before_the_rotation(backend):
    x, w = torch.randn(4, 64).bfloat16(), torch.randn(64)
    rows = transform.rope_rows(transform.rope_table(40, 16, theta=10000.0), torch.arange(4) + 9)
    view = make_view(backend, "v41_fp4")
    _, copy = transform.fused(
        x, norm=(w, 1e-20), rope=(rows, False), store=(view, torch.arange(4, dtype=torch.int32)), copy_stage="norm"
    )
    assert torch.equal(copy, norm.rms(x, w, eps=1e-20)[0])


def test_fused_with_an_unknown_stage_is_refused():
    with pytest.raises(ShapeContractError, match="copy_stage"):
        transform.fused(torch.zeros(1, 32), copy_stage="rope")
