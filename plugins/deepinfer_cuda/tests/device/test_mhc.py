"""Hyper-connections on a device, against fp64."""

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import mhc as reference
from deepinfer_cuda.ops import mhc

pytestmark = pytest.mark.cuda


def sublayer(g, width, device, c=4, peak=2.0):
    rows = c * (c + 2)
    fn = torch.randn(rows, c * width, generator=g) * (c * width) ** -0.5
    tensors = fn, torch.tensor([0.7, 1.3, peak]), torch.randn(rows, generator=g) * peak
    return tensors, mhc.prepare(*(t.to(device) for t in tensors))


@pytest.mark.parametrize("peak", [0.5, 8.0])
@pytest.mark.parametrize(("rows", "width"), [(0, 256), (1, 5120), (7, 256), (65, 5120), (1030, 256), (513, 5120)])
def test_pre_equals_fp64(cuda, rows, width, peak):
    g = torch.Generator().manual_seed(rows + width)
    tensors, params = sublayer(g, width, cuda, peak=peak)
    assert params.matrix is not None
    stream, a = samples.uneven(g, rows, 4, width, octaves=3), torch.rand(rows, 4, generator=g) - 0.3
    x, after, post, comb = mhc.pre(stream.to(cuda), a.to(cuda), params)
    expected = reference.mixing(stream, *tensors)
    for name, got, true in (("a", after, expected.a), ("post", post, expected.post), ("comb", comb, expected.comb)):
        assert got.dtype == torch.float32
        worst = float(((got.double().cpu() - true).abs() - 1e-5 * true.abs()).max()) if rows else 0.0
        assert worst <= 1e-5, f"{name}: {worst}"
    if rows:
        right = reference.collapse(stream, a)
        assert float((x.double().cpu() - right).norm() / right.norm()) < 4e-3


def test_pre_of_a_row_has_the_same_bits_in_small_and_large_batches(cuda):
    g = torch.Generator().manual_seed(5)
    _, params = sublayer(g, 5120, cuda)
    stream, a = samples.normal(g, 700, 4, 5120).to(cuda), torch.rand(700, 4, generator=g).to(cuda)
    whole = mhc.pre(stream, a, params)
    for rows in ([0], [699, 3], list(range(100, 230)), list(range(20, 240)), list(range(480))):
        for got, all_rows in zip(mhc.pre(stream[rows], a[rows], params), whole, strict=True):
            assert torch.equal(got, all_rows[rows])


def test_pre_has_the_same_bits_whatever_a_block_takes(cuda, monkeypatch):
    g = torch.Generator().manual_seed(6)
    _, params = sublayer(g, 5120, cuda)
    stream, a = samples.normal(g, 130, 4, 5120).to(cuda), torch.rand(130, 4, generator=g).to(cuda)
    whole = mhc.pre(stream, a, params)
    for run in mhc.RUNS:
        monkeypatch.setattr(mhc, "run_of", lambda *_, run=run: run)
        assert all(map(torch.equal, mhc.pre(stream, a, params), whole)), run
    monkeypatch.setattr(mhc, "MANY_ROWS", 1)
    assert all(map(torch.equal, mhc.pre(stream, a, params), whole))


@pytest.mark.parametrize(("rows", "width"), [(1, 256), (67, 5120)])
def test_post_and_head_equal_fp64(cuda, rows, width):
    g = torch.Generator().manual_seed(rows)
    y, stream = samples.normal(g, rows, width), samples.normal(g, rows, 4, width)
    post, comb = torch.rand(rows, 4, generator=g) * 2, torch.rand(rows, 4, 4, generator=g)
    got = mhc.post(y.to(cuda), stream.to(cuda), post.to(cuda), comb.to(cuda))
    right = reference.post(y, stream, post, comb)
    assert float((got.double().cpu() - right).norm() / right.norm()) < 4e-3
    got = mhc.head(stream.to(cuda), post.to(cuda))
    right = reference.collapse(stream, post)
    assert float((got.double().cpu() - right).norm() / right.norm()) < 4e-3


def test_a_sublayer_runs_in_a_graph(cuda):
    g = torch.Generator().manual_seed(9)
    _, params = sublayer(g, 256, cuda)
    stream, a = samples.normal(g, 5, 4, 256).to(cuda), torch.rand(5, 4, generator=g).to(cuda)

    def step():
        x, after, post, comb = mhc.pre(stream, a, params)
        return mhc.head(mhc.post(x, stream, post, comb), after)

    eager = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    captured.fill_(float("nan"))
    graph.replay()
    assert torch.equal(captured, eager)
