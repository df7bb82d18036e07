"""The expert layer on a device: each op against the plain one or fp64, and rows that do not feel their batch."""

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import moe as reference
from deepinfer_core.conformance.reference import quant as weights
from deepinfer_cuda import grouped, products, unproven
from deepinfer_cuda.ops import moe
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.routing import Dispatched
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor
from deepinfer_cuda.tl.moe import wide
from deepinfer_cuda.unproven import EXPERT_ROWS, all_serve

pytestmark = pytest.mark.cuda
Q8 = ("e4m3", 32, "ue8m0")


@pytest.fixture(autouse=True)
def kernels():
    """The kernels, whether or not they serve already."""
    with all_serve():
        yield


def draw(seed):
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)


def stack(g, device, experts, outputs, inputs):
    """An FP4 stack, and its values ``[E, out, in]`` in fp64."""
    pairs = [samples.fp4_weight(g, outputs, inputs) for _ in range(experts)]
    codes, scales = (torch.stack([pair[i].view(torch.uint8) for pair in pairs]) for i in (0, 1))
    reach = (int(scales.min()) - 127, int(scales.max()) - 127)
    w = PreparedWeight(
        name="w", use="experts", fmt="e2m1", stored=codes.to(device), scales=scales.to(device), block_rows=1,
        reach=reach,
    )  # fmt: skip
    return w, torch.stack([weights.weight_values(*pair) for pair in pairs]).double()


def codes(g, device, experts, outputs, inputs):
    """An FP4 stack of any codes: what costs time on the host is to know their values."""
    stored = torch.randint(0, 256, (experts, outputs, inputs // 2), generator=g, dtype=torch.uint8)
    scales = torch.randint(117, 121, (experts, outputs, inputs // 32), generator=g, dtype=torch.uint8)
    return PreparedWeight(
        name="w", use="experts", fmt="e2m1", stored=stored.to(device), scales=scales.to(device), block_rows=1,
        reach=(-10, -7),
    )  # fmt: skip


def router(g, device, experts, width):
    values = samples.normal(g, experts, width, scale=width**-0.5)
    return PreparedWeight(name="gate", use="dense", fmt="bf16", stored=values.to(device))


def quantised(x, device):
    q = plain_op("quant.cast_per_token")(x)
    return QuantTensor(fmt="e4m3", group=32, sf_kind="ue8m0", sf=q.sf.to(device), exact=q.values.bfloat16().to(device))


def routing(g, tokens, k, experts, masked=0.0):
    idx = torch.rand(tokens, experts, generator=g).argsort(dim=1)[:, :k].contiguous()
    idx[torch.rand(tokens, generator=g) < masked] = -1
    return idx, torch.rand(tokens, k, generator=g).masked_fill(idx < 0, 0.0)


def distance(got, expected):
    return float((got.double().cpu() - expected.double().cpu()).norm() / expected.double().norm())


@pytest.mark.parametrize(("experts", "k", "width"), [(8, 2, 256), (384, 6, 5120)])
@pytest.mark.parametrize("tokens", [0, 1, 9, 65, 600])
@pytest.mark.parametrize("invariant", [False, True], ids=["", "invariant"])
def test_gate_chooses_as_the_plain_one(cuda, monkeypatch, experts, k, width, tokens, invariant):
    monkeypatch.setattr(products.SETTINGS, "batch_invariant", invariant)
    g = draw(17 + tokens)
    w, bias = router(g, cuda, experts, width), (torch.rand(experts, generator=g) * 0.2).to(cuda)
    x = samples.normal(g, tokens, width).to(cuda)
    mask = (torch.rand(tokens, generator=g) < 0.8).to(cuda)
    image, other = (torch.rand(tokens, generator=g) < 0.5).to(cuda), bias.flip(0).contiguous()
    for options in ({}, {"mask": mask, "temperature": 0.7}, {"image_rows": image, "bias_image": other}):
        ids, weight = moe.gate(x, w, bias, k=k, scale=1.5, **options)
        true_ids, true_weight = plain_op("moe.gate")(x, w, bias, k=k, scale=1.5, **options)
        assert (ids.dtype, weight.dtype) == (torch.int64, torch.float32)
        same = (ids == true_ids).all(1)
        # In fp32 the order of a sum moves a score by 1e-6: few rows have a choice so close.
        assert same.float().mean() >= (0.99 if tokens > 100 else 1.0) or not tokens
        assert torch.allclose(weight[same], true_weight[same], rtol=1e-4, atol=1e-7)


def test_gate_of_equal_scores_takes_lower_ids(cuda):
    w = PreparedWeight(name="g", use="dense", fmt="bf16", stored=torch.zeros(384, 256, dtype=torch.bfloat16).to(cuda))
    bias = torch.zeros(384, device=cuda)
    bias[[300, 77]] = 1.0
    ids, weight = moe.gate(samples.normal(draw(3), 40, 256).to(cuda), w, bias, k=6, scale=1.5)
    assert ids.tolist() == [[77, 300, 0, 1, 2, 3]] * 40
    assert torch.allclose(weight, torch.full_like(weight, 0.25))


def test_gate_of_a_row_does_not_depend_on_its_batch(cuda, monkeypatch):
    monkeypatch.setattr(products.SETTINGS, "batch_invariant", True)
    g = draw(23)
    w, bias = router(g, cuda, 384, 5120), torch.rand(384, generator=g).to(cuda)
    x = samples.normal(g, 700, 5120).to(cuda)
    ids, weight = moe.gate(x, w, bias, k=6, scale=1.5)
    for rows in (slice(0, 1), slice(5, 14), slice(100, 180), slice(0, 512), slice(33, 599)):
        part_ids, part = moe.gate(x[rows], w, bias, k=6, scale=1.5)
        assert torch.equal(part_ids, ids[rows])
        assert torch.equal(part, weight[rows])


@pytest.mark.parametrize("tokens", [0, 1, 7, 64, 85, 86, 300])
@pytest.mark.parametrize("masked", [0.0, 0.3, 1.0])
def test_sorted_pairs_equal_a_stable_sort(cuda, tokens, masked):
    idx, weight = (t.to(cuda) for t in routing(draw(tokens), tokens, 6, 384, masked))
    d = moe.dispatch(samples.normal(draw(1), tokens, 64).to(cuda), idx, weight)
    plain = Dispatched(d.given, d.routing.__class__(idx, weight))
    if not tokens:
        assert d.weight.shape == (0,)
        return
    for tile in (8, 96):
        plain_tiles = plain.routing.plain_tiles(384, tile)
        tiles = d.routing.tiles(384, tile)
        for name in ("row_of", "pair_of", "row_weight"):
            assert torch.equal(getattr(d.routing, name), getattr(plain.routing, name)), name
        for name in ("rows", "expert", "begin"):
            found, true = (getattr(t, name)[t.rows > 0] for t in (tiles, plain_tiles))
            assert torch.equal(found, true), name
        assert ((tiles.rows >= 0) & (tiles.rows <= tile)).all()


@pytest.mark.parametrize("clamp", [0.0, 1.0, 10.0])
@pytest.mark.parametrize(
    ("tokens", "hidden", "inner"),
    [(t, *sizes) for sizes in ((256, 64), (96, 32), (320, 96)) for t in (0, 1, 9, 70)] + [(200, 256, 64)],
)
def test_layer_equals_fp64_with_the_roundings_of_a_step(cuda, hidden, inner, tokens, clamp):
    g = draw(tokens + hidden)
    w1, up = stack(g, cuda, 8, 2 * inner, hidden)
    w2, down = stack(g, cuda, 8, hidden, inner)
    idx, weight = routing(g, tokens, 2, 8, 0.2)
    x, shared = samples.normal(g, tokens, hidden), samples.normal(g, tokens, hidden)
    q = quantised(x, cuda)
    given = idx.to(cuda), weight.to(cuda), shared.to(cuda)
    assert grouped.can_pack(w1, gated=True)
    assert grouped.can_pack(w2, gated=False)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        d = moe.dispatch(q, *given[:2])
        y = moe.experts(d, w1, w2, clamp=clamp)
        out = moe.combine(y, d.handle, bias=given[2])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    values = q.values.cpu()
    rows = [
        {
            int(e): reference.expert(values[t : t + 1], weight[t, c : c + 1], up[e], down[e], clamp, Q8)[0]
            for c, e in enumerate(idx[t])
            if e >= 0
        }
        for t in range(tokens)
    ]
    assert out.shape == (tokens, hidden)
    if tokens:
        assert distance(out, reference.combine(rows, hidden, shared)) < 4e-3


def test_layer_of_the_real_widths_equals_fp64(cuda):
    g = draw(91)
    w1, up = stack(g, cuda, 3, 4608, 5120)
    w2, down = stack(g, cuda, 3, 5120, 2304)
    tokens = 40
    idx, weight = routing(g, tokens, 2, 3)
    q = quantised(samples.normal(g, tokens, 5120), cuda)
    d = moe.dispatch(q, idx.to(cuda), weight.to(cuda))
    y = moe.experts(d, w1, w2, clamp=10.0)
    place = {row: (t, c) for t, line in enumerate(d.routing.row_of.tolist()) for c, row in enumerate(line)}
    values = q.values.cpu()
    for row in (0, 1, 30, 79):
        t, c = place[row]
        e = int(idx[t, c])
        true = reference.expert(values[t : t + 1], weight[t, c : c + 1], up[e], down[e], 10.0, Q8)
        assert distance(y[row : row + 1], true) < 4e-3


def test_layer_with_a_plain_sort_gives_the_same_bits(cuda, monkeypatch):
    g = draw(31)
    w1, _ = stack(g, cuda, 8, 128, 256)
    w2, _ = stack(g, cuda, 8, 256, 64)
    idx, weight = (t.to(cuda) for t in routing(g, 21, 2, 8, 0.2))
    q = quantised(samples.normal(g, 21, 256), cuda)
    results = []
    for idle in (set(), {"moe.gate", "moe.combine", "moe.swiglu", EXPERT_ROWS}):
        monkeypatch.setattr(unproven, "OPS", idle)
        d = moe.dispatch(q, idx, weight)
        results.append(moe.combine(moe.experts(d, w1, w2, clamp=10.0), d.handle))
    assert torch.equal(*results)


def test_experts_of_a_row_do_not_depend_on_its_batch_or_on_the_tile(cuda, monkeypatch):
    g = draw(29)
    w1, w2 = codes(g, cuda, 3, 4608, 5120), codes(g, cuda, 3, 5120, 2304)
    tokens = 150
    idx, weight = (t.to(cuda) for t in routing(g, tokens, 2, 3))
    q = quantised(samples.normal(g, tokens, 5120), cuda)

    def run(rows):
        part = QuantTensor(
            fmt=q.fmt, group=32, sf_kind=q.sf_kind, sf=q.sf[rows].contiguous(), exact=q.exact[rows].contiguous()
        )
        d = moe.dispatch(part, idx[rows], weight[rows])
        return moe.combine(moe.experts(d, w1, w2, clamp=10.0), d.handle)

    whole = run(slice(0, tokens))
    assert whole.isfinite().all()
    assert whole.any()
    for tile in (8, 16, 32, wide.TILE):
        monkeypatch.setattr(grouped, "TILES", ((float("inf"), tile),))
        heights = [slice(0, height) for height in wide.HEIGHTS] if tile == wide.TILE else []
        for rows in (slice(0, tokens), slice(0, 1), slice(40, 77), *heights, *(slice(9, h.stop + 30) for h in heights)):
            assert torch.equal(run(rows), whole[rows]), (tile, rows)


def test_combine_adds_in_ascending_expert_id_and_rounds_once(cuda):
    g = draw(7)
    idx, weight = routing(g, 33, 6, 384, 0.2)
    x, shared = samples.normal(g, 33, 5120).to(cuda), samples.normal(g, 33, 5120).to(cuda)
    d = moe.dispatch(x, idx.to(cuda), weight.to(cuda))
    y = samples.normal(g, d.routing.rows, 5120).to(cuda)
    for bias in (None, shared):
        assert torch.equal(
            moe.combine(y, d.handle, bias=bias) + 0.0, plain_op("moe.combine")(y, d.handle, bias=bias) + 0.0
        )


@pytest.mark.parametrize(("rows", "inner"), [(0, 64), (1, 2304), (65, 96), (9, 1056)])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_swiglu_equals_fp64_and_its_cast(cuda, rows, inner, weighted):
    g = draw(rows + inner)
    x = samples.normal(g, rows, 2 * inner, scale=5.0)
    weight = torch.rand(rows, generator=g) * 2 if weighted else None
    given = None if weight is None else weight.to(cuda)
    y = moe.swiglu(x.to(cuda), clamp=10.0, weight=given)
    q = moe.swiglu(x.to(cuda), clamp=10.0, weight=given, cast=Q8)
    if rows:
        assert distance(y, reference.swiglu(x, 10.0, weight)) < 3e-3
    own = plain_op("quant.cast_per_token")(y.cpu())
    assert torch.equal(q.sf.cpu(), own.sf)
    assert torch.equal(q.exact.cpu().float() + 0.0, own.values + 0.0)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("rows", "ends"), [(40, [3, 3, 30, 36]), (200, [3, 3, 130, 190])], ids=["few", "many"])
def test_grouped_multiplies_segments_and_clears_the_rest(cuda, out_dtype, rows, ends):
    g = draw(13)
    w, values = stack(g, cuda, 4, 96, 160)
    a = samples.normal(g, rows, 160)
    expected = torch.zeros(rows, 96, dtype=torch.float64)
    for e, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
        expected[begin:end] = a[begin:end].double() @ values[e].t()
    for given in (ends, torch.tensor(ends, dtype=torch.int32, device=cuda)):
        y = grouped.grouped(a.to(cuda), w, given, out_dtype=out_dtype)
        assert distance(y, expected) < (4e-3 if out_dtype == torch.bfloat16 else 2e-6)
        assert not y[ends[-1] :].any()
