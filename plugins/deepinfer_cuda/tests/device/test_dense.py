"""Products on a device: FP8 and bf16 weights against fp64 of what they stand for, whatever the number of rows."""

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import quant as reference
from deepinfer_cuda import packing, products
from deepinfer_cuda.ops.gemm import dense, einsum_heads
from deepinfer_cuda.ops.quant import cast_per_token, prepare_weight
from deepinfer_cuda.tl.parts import cuts

pytestmark = pytest.mark.cuda
SHAPES = [(1792, 5120), (256, 256), (25600, 128)]
SMALL = cuts.Stream(2, 4, 3, 2, 3)
LIMIT = {torch.float32: 2e-6, torch.bfloat16: 4e-3}


def draw(seed):
    print(f"seed {seed}")
    return torch.Generator().manual_seed(seed)


def fp8(g, outputs, inputs, device, **options):
    """A prepared weight, and its values in fp64."""
    codes, scale = samples.fp8_weight(g, outputs, inputs)
    values = reference.weight_values(codes, scale).double()
    return prepare_weight("w", codes.to(device), scale.to(device), **options), values


def distance(got, expected):
    return float((got.double().cpu() - expected).norm() / expected.norm())


@pytest.fixture
def invariant(monkeypatch):
    monkeypatch.setattr(products.SETTINGS, "batch_invariant", True)


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 8, 9, 31, 64, 65, 300])
def test_dense_of_an_fp8_weight_equals_fp64(cuda, outputs, inputs, rows):
    g = draw(41 + rows)
    w, values = fp8(g, outputs, inputs, cuda)
    assert packing.can_pack(w)
    q = cast_per_token(samples.uneven(g, rows, inputs, octaves=3).to(cuda))
    out = torch.full((rows, outputs), float("nan"), dtype=torch.bfloat16, device=cuda)
    assert dense(q, w, out=out) is out
    if rows:
        expected = q.values.double().cpu() @ values.t()
        assert distance(out, expected) < LIMIT[torch.bfloat16]
        again = dense(q, w)
        assert torch.equal(out, again)


@pytest.mark.parametrize("rows", [33, 64])
def test_pieces_that_do_not_divide_the_inputs_equal_fp64(cuda, rows):
    g = draw(45 + rows)
    w, values = fp8(g, 4608, 5120, cuda)
    assert products.takes(w, rows).splits == 3
    x = samples.normal(g, rows, 5120).to(cuda)
    for _ in range(3):
        assert distance(dense(x, w), x.double().cpu() @ values.t()) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize("rows", [9, 16, 33, 64])
def test_wide_blocks_equal_the_product_of_the_library(cuda, rows):
    g = torch.Generator(cuda).manual_seed(47)
    codes = torch.randint(0, 127, (25600, 6144), generator=g, device=cuda, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scale = torch.randint(108, 119, (800, 192), generator=g, device=cuda, dtype=torch.uint8)
    w = prepare_weight("wkv", codes, scale)
    assert products.takes(w, rows).tile == 256
    x = torch.randn(rows, 6144, generator=g, device=cuda).bfloat16()
    expected = torch.mm(x, w.exact.t(), out_dtype=torch.float32)
    assert distance(dense(x, w), expected.double().cpu()) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize("outputs", [384, 32, 72])
@pytest.mark.parametrize("rows", [1, 7, 64, 129])
def test_dense_of_a_plain_weight_in_fp32_equals_fp64(cuda, invariant, rows, outputs):
    g = draw(51 + rows)
    plain, x = samples.normal(g, outputs, 5120), samples.normal(g, rows, 5120)
    y = dense(x.to(cuda), prepare_weight("gate", plain.to(cuda)), out_dtype=torch.float32)
    assert y.dtype == torch.float32
    assert distance(y, x.double() @ plain.double().t()) < LIMIT[torch.float32]


def test_dense_adds_the_accumulator_before_it_rounds(cuda):
    g = draw(61)
    w, values = fp8(g, 256, 256, cuda)
    x = samples.normal(g, 6, 256)
    product = x.double() @ values.t()
    acc = (-product.float() * (1 - 2.0**-10)).to(cuda)
    y = dense(x.to(cuda), w, acc=acc)
    assert y.dtype == torch.bfloat16
    assert distance(y, product + acc.double().cpu()) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize("rows", [1, 5, 64, 90])
def test_einsum_heads_multiplies_each_group_by_its_own_weight(cuda, rows):
    g = draw(71 + rows)
    w, values = fp8(g, 3 * 128, 256, cuda, use="heads:3")
    x = samples.normal(g, rows, 3, 256)
    y = einsum_heads(x.to(cuda), w)
    assert y.shape == (rows, 3, 128)
    assert distance(y, torch.einsum("tgk,gnk->tgn", x.double(), values.view(3, 128, 256))) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
def test_a_row_has_the_same_bits_alone_and_in_any_batch(cuda, invariant, outputs, inputs):
    g = draw(81)
    w, _ = fp8(g, outputs, inputs, cuda)
    x = samples.normal(g, 129, inputs).to(cuda)
    whole = dense(x, w, out_dtype=torch.float32)
    for rows in ([0], [5, 3], list(range(17)), list(range(40, 73)), list(range(128, -1, -1))):
        got = dense(x[rows], w, out_dtype=torch.float32)
        assert torch.equal(got, whole[rows]), f"{len(rows)} rows"


@pytest.mark.parametrize(("rows", "outputs"), [(3, 4608), (9, 1792)])
def test_a_product_of_few_rows_runs_in_a_graph_and_leaves_its_counters_at_zero(cuda, rows, outputs):
    g = draw(91)
    w, _ = fp8(g, outputs, 5120, cuda)
    x = samples.normal(g, rows, 5120).to(cuda)
    eager = dense(x, w)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dense(x, w)
    for _ in range(3):
        captured.fill_(float("nan"))
        graph.replay()
        assert torch.equal(captured, eager)
    assert torch.equal(dense(x, w), eager)


@pytest.mark.parametrize(("rows", "outputs"), [(4, 4608), (9, 1792)])
def test_a_broken_row_spares_the_others(cuda, rows, outputs):
    g = draw(101)
    w, _ = fp8(g, outputs, 5120, cuda)
    x = samples.normal(g, rows, 5120).to(cuda)
    clean = dense(x, w)
    x[2, 17] = float("nan")
    broken = dense(x, w)
    assert bool(broken[2].isnan().all())
    assert torch.equal(broken[3:], clean[3:])
    assert torch.equal(broken[:2], clean[:2])


@pytest.mark.parametrize(
    ("shape", "stream"), [*cuts.STREAMS.items(), ((192, 256, 1), cuts.Stream(1, 8, 1, 2, 4)), ((64, 1152, 2), SMALL)]
)
def test_streams_equal_fp64_and_a_row_has_its_bits_whatever_stands_beside_it(cuda, monkeypatch, shape, stream):
    """Launched right behind what writes their rows, which they may ask for after that kernel alone."""
    monkeypatch.setitem(cuts.STREAMS, shape, stream)
    monkeypatch.setattr(products, "dense_rows", None)  # nothing else may multiply
    outputs, inputs, groups = shape
    g = draw(131 + outputs)
    w, values = fp8(g, groups * outputs, inputs, cuda, **({"use": f"heads:{groups}"} if groups > 1 else {}))
    x = samples.normal(g, stream.most, groups, inputs).to(cuda)

    def multiply(rows):
        late = torch.zeros(len(rows), groups, inputs, dtype=torch.bfloat16, device=cuda)
        for _ in range(20):
            late.mul_(0.5)
        late.copy_(x[rows])
        return einsum_heads(late, w) if groups > 1 else dense(late[:, 0], w)

    whole = multiply(list(range(stream.most)))
    expected = torch.einsum("tgk,gnk->tgn", x.double().cpu(), values.view(groups, outputs, inputs))
    assert distance(whole.view(expected.shape), expected) < LIMIT[torch.bfloat16]
    for rows in ([0], [1], [stream.most - 1, 0], list(range(stream.most - 1, -1, -1))):
        if max(rows) < stream.most:
            assert torch.equal(multiply(rows), whole[rows]), rows


@pytest.mark.parametrize("sizes", [(64, 96), (40, 24), (33,)])
def test_prepared_pieces_have_the_values_of_the_reference(cuda, sizes):
    g = draw(111)
    pairs = [samples.fp8_weight(g, n, 96) for n in sizes]
    w = prepare_weight("w", [c.to(cuda) for c, _ in pairs], [s.to(cuda) for _, s in pairs])
    expected = torch.cat([reference.weight_values(*pair) for pair in pairs]).float()
    assert w.parts == sizes
    assert torch.equal(w.matrix.cpu(), expected.t())
    assert torch.equal(w.exact.float().cpu(), expected)


def test_weights_of_several_formats_join_as_values(cuda):
    g = draw(121)
    codes, scale = samples.fp8_weight(g, 64, 96)
    plain = samples.normal(g, 32, 96)
    w = prepare_weight("w", [codes.to(cuda), plain.to(cuda)], [scale.to(cuda), None])
    assert w.fmt == "bf16"
    assert torch.equal(w.exact[:64].double().cpu(), reference.weight_values(codes, scale).double())
    assert torch.equal(w.exact[64:].cpu(), plain)
