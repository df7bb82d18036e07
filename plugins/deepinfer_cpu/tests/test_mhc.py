"""Hyper-connections: the golden Sinkhorn matrix and a direct version of ``spec/model.md`` 2.4."""

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import mhc

C, H = 4, 32
GOLDEN = [
    [0.140349, 0.140349, 0.255214, 0.464087],
    [0.255214, 0.255214, 0.464087, 0.025485],
    [0.140349, 0.140349, 0.255214, 0.464087],
    [0.464086, 0.464087, 0.025485, 0.046341],
]


def plain_sinkhorn(s: np.ndarray, iters: int, eps: float) -> np.ndarray:
    """``[T, source, destination]`` in double precision."""
    e = np.exp(s - s.max(-1, keepdims=True))
    b = e / e.sum(-1, keepdims=True) + eps
    b = b / (b.sum(-2, keepdims=True) + eps)
    for _ in range(iters - 1):
        b = b / (b.sum(-1, keepdims=True) + eps)
        b = b / (b.sum(-2, keepdims=True) + eps)
    return b


def sinkhorn(s: np.ndarray) -> np.ndarray:
    return mhc.sinkhorn(np.ascontiguousarray(s.transpose(1, 2, 0)), 20, 1e-6).transpose(2, 0, 1)


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_sinkhorn_of_the_golden_input_gives_the_golden_matrix(tokens):
    s = np.array([[((4 * i + j) % 7) * 0.5 - 1 for j in range(4)] for i in range(4)])
    for b in sinkhorn(np.repeat(s[None], tokens, 0)):
        np.testing.assert_allclose(b, GOLDEN, atol=6e-7)
        assert abs(b.T - GOLDEN).max() > 0.1


@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("size", [1.0, 10.0, 50.0])
def test_sinkhorn_of_large_entries_equals_double_precision(tokens, size):
    rng = np.random.default_rng(7)
    s = rng.uniform(-size, size, (tokens, 4, 4))
    np.testing.assert_allclose(sinkhorn(s), plain_sinkhorn(s, 20, 1e-6), atol=1e-12, rtol=0)


def test_sinkhorn_of_one_token_has_the_bits_it_has_among_others():
    s = np.random.default_rng(3).uniform(-20, 20, (40, 4, 4))
    many = sinkhorn(s)
    for t in range(40):
        assert np.array_equal(sinkhorn(s[t : t + 1])[0], many[t])
        assert np.array_equal(sinkhorn(s[t : t + 2])[0], many[t])


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_sinkhorn_of_another_stream_count_works_for_one_and_many(streams):
    s = np.random.default_rng(5).uniform(-3, 3, (6, streams, streams))
    many = sinkhorn(s)
    np.testing.assert_allclose(many, plain_sinkhorn(s, 20, 1e-6), atol=1e-12)
    assert np.array_equal(sinkhorn(s[2:3])[0], many[2])


def params(scale=(1.0, 1.0, 1.0)):
    fn = torch.randn(C * (C + 2), C * H) / (C * H) ** 0.5
    base = torch.randn(C * (C + 2))
    return mhc.prepare(fn, torch.tensor(scale), base), fn, base


def plain_mix(stream, fn, scale, base):
    z = stream.double().flatten(1)
    m = z @ fn.double().t() * (z.square().mean(-1, keepdim=True) + 1e-20).rsqrt()
    a = torch.sigmoid(m[:, :4] * scale[0] + base[:4]) + 1e-6
    post = 2 * torch.sigmoid(m[:, 4:8] * scale[1] + base[4:8])
    s = (m[:, 8:] * scale[2] + base[8:]).view(-1, 4, 4)
    return a, post, torch.from_numpy(plain_sinkhorn(s.numpy(), 20, 1e-6))


@pytest.mark.parametrize("rows", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_pre_equals_the_formulas(rows, dtype):
    scale = (0.5, 2.0, 3.0)
    p, fn, base = params(scale)
    stream, a = torch.randn(rows, C, H).to(dtype), torch.rand(rows, C)
    x, a_next, post, comb = mhc.pre(stream, a, p)
    expected = plain_mix(stream, fn, scale, base)
    for got, want in zip((a_next, post, comb), expected, strict=True):
        assert got.dtype == torch.float32
        torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
    u = torch.einsum("tc,tch->th", a.double(), stream.double())
    assert x.dtype == dtype
    torch.testing.assert_close(x.double(), u, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)


def test_pre_uses_the_incoming_coefficients_not_its_own():
    p, _, _ = params()
    stream = torch.randn(3, C, H).bfloat16()
    a = torch.zeros(3, C)
    a[:, 2] = 1
    assert torch.equal(mhc.pre(stream, a, p)[0], stream[:, 2])


def test_coefficients_lie_in_their_ranges():
    p, _, _ = params((5.0, 5.0, 5.0))
    _, a, post, comb = mhc.pre(torch.randn(50, C, H), torch.rand(50, C), p)
    assert ((a > 1e-6 * 0.99) & (a <= 1 + 2e-6)).all()
    assert ((post > 0) & (post <= 2)).all()
    torch.testing.assert_close(comb.sum(1), torch.ones(50, C), rtol=0, atol=1e-5)


def test_pre_with_zero_fn_does_not_depend_on_the_input():
    p = mhc.prepare(torch.zeros(24, C * H), torch.ones(3), torch.randn(24))
    a = torch.rand(1, C)
    one, two = (mhc.pre(torch.randn(1, C, H), a, p)[1:] for _ in range(2))
    for x, y in zip(one, two, strict=True):
        assert torch.equal(x, y)


def test_pre_of_zero_rows_is_finite():
    p, _, _ = params()
    for value in mhc.pre(torch.zeros(2, C, H).bfloat16(), torch.zeros(2, C), p):
        assert value.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_post_sums_over_sources(dtype):
    stream, y = torch.randn(5, C, H).to(dtype), torch.randn(5, H).to(dtype)
    post, comb = torch.rand(5, C), torch.rand(5, C, C)
    got = mhc.post(y, stream, post, comb)
    want = torch.einsum("tij,tih->tjh", comb.double(), stream.double()) + torch.einsum(
        "tj,th->tjh", post.double(), y.double()
    )
    assert got.dtype == dtype
    torch.testing.assert_close(got.double(), want, rtol=2**-8 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
    wrong = torch.einsum("tji,tih->tjh", comb.double(), stream.double())
    assert not torch.allclose(got.double(), wrong, atol=0.1)


def test_expand_then_head_with_one_hot_gives_the_embedding():
    x = torch.randn(3, H).bfloat16()
    stream = mhc.expand(x, C)
    a = torch.zeros(3, C)
    a[:, 0] = 1
    assert stream.shape == (3, C, H)
    assert torch.equal(mhc.head(stream, a), x)


def test_pre_of_another_stream_count_is_refused():
    p, _, _ = params()
    with pytest.raises(ShapeContractError, match=r"mhc\.pre: argument 'stream' must be \[T, 4, 32\], got \[2, 3, 32\]"):
        mhc.pre(torch.zeros(2, 3, H), torch.zeros(2, 3), p)


def test_prepare_of_a_misfitting_fn_is_refused():
    with pytest.raises(ShapeContractError, match=r"mhc\.prepare"):
        mhc.prepare(torch.zeros(23, C * H), torch.ones(3), torch.zeros(23))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_pre_of_a_broken_row_is_silent_and_leaves_the_others_whole(value):
    p, _, _ = params()
    stream, a = torch.randn(3, C, H), torch.rand(3, C)
    whole = mhc.pre(stream, a, p)
    stream[1, 2, 3] = value
    for rows in (slice(0, 3), slice(1, 2)):
        got = mhc.pre(stream[rows], a[rows], p)
        for one, other in zip(got, whole, strict=True):
            if one.shape[0] == 3:
                assert torch.equal(one[[0, 2]], other[[0, 2]])
        assert not got[3][-1 if one.shape[0] == 1 else 1].isfinite().all()


def test_sinkhorn_without_eps_of_a_hopeless_column_is_not_an_exception():
    s = np.full((1, 4, 4), 0.0)
    s[:, :, 0] = -1e4
    with np.errstate(invalid="ignore"):
        mhc.sinkhorn(np.ascontiguousarray(s.transpose(1, 2, 0)), 20, 0.0)
