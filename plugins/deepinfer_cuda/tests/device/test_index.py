"""Indexer scores and the selection on a device, against the ops of ``cpu`` and a stable sort."""

import math

import pytest
import torch

from deepinfer_core.caches import CacheView
from deepinfer_cuda.jit import kernel
from deepinfer_cuda.ops import indexer
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tensors import QuantTensor
from deepinfer_cuda.tl.indexer import paged, tensor_core
from deepinfer_cuda.unproven import all_serve

pytestmark = pytest.mark.cuda
GUARD = 777.0


@pytest.fixture(autouse=True)
def kernels():
    """The kernels, whether or not they serve already."""
    with all_serve():
        yield


@pytest.fixture
def generator(cuda):
    return torch.Generator(cuda).manual_seed(41)


def codes(generator, *shape):
    return torch.randint(0, 256, shape, generator=generator, dtype=torch.uint8, device=generator.device)


def scales(generator, *shape):
    return torch.randint(118, 132, shape, generator=generator, dtype=torch.uint8, device=generator.device)


def quantised(generator, *shape):
    return QuantTensor.of_codes(
        codes(generator, *shape[:-1], shape[-1] // 2),
        scales(generator, *shape[:-1], shape[-1] // 32),
        fmt="e2m1",
        group=32,
        sf_kind="ue8m0",
    )


def view_of(generator, units, page, width, gap=64, before=128):
    """A cache view behind ``before`` bytes of something else, with ``gap`` bytes between its pages."""
    used = page * (width // 2 + width // 32)
    stride = -(-used // 32) * 32 + gap
    arena = codes(generator, before + units * stride)
    tensor = arena.as_strided((units, used), (stride, 1), before)
    tensor[:, page * width // 2 :] = scales(generator, units, page * width // 32)
    return CacheView(tensor, "index_fp4", page, stride, width)


def keys_of(view, table, n):
    """fp64 keys of one row."""
    data, sf = view.split()
    entry = torch.arange(n, device=table.device)
    unit, rest = table[entry // view.page].long(), entry % view.page
    found = QuantTensor.of_codes(data[unit, rest], sf[unit, rest], fmt="e2m1", group=32, sf_kind="ue8m0")
    return found.values.double()


def scored(q, weights, keys):
    return (torch.einsum("hd,sd->hs", q.double(), keys).relu() * weights.double().unsqueeze(1)).sum(0)


def difference(got, wanted):
    got, wanted = got.double(), wanted.double()
    return float(1 - 2 * (got * wanted).sum() / ((got * got).sum() + (wanted * wanted).sum()))


SIZES = [(32, 128, 64, [0, 1, 63, 64, 65, 700, 1024, 1025, 3000]), (32, 128, 64, [70_000, 9000]),
         (32, 128, 128, [5, 2049]), (64, 128, 64, [130]), (4, 32, 8, [0, 1, 7, 8, 9, 31, 33, 90]),
         (4, 32, 16, [129, 128])]  # fmt: skip


@pytest.mark.parametrize(("heads", "width", "page", "lengths"), SIZES)
def test_scores_of_cached_keys_equal_fp64(cuda, generator, heads, width, page, lengths):
    rows, longest = len(lengths), max(lengths)
    view = view_of(generator, 70, page, width)
    table = torch.randint(0, 70, (rows, -(-longest // page) + 1), generator=generator, device=cuda).int()
    lens = torch.tensor(lengths, dtype=torch.int32, device=cuda)
    q = quantised(generator, rows, heads, width)
    weights = torch.randn(rows, heads, generator=generator, device=cuda)
    out = torch.full((rows, longest + 3), GUARD, device=cuda)
    given = q.exact if page in (16, 128) else q
    got = indexer.logits(given, weights, view, context_lens=lens, block_table=table, max_k=longest + 3, out=out)
    assert got is out
    for t, n in enumerate(lengths):
        assert bool((out[t, n:] == GUARD).all()), f"row {t}: columns past {n} were written"
        if n:
            wanted = scored(q.values[t], weights[t], keys_of(view, table[t], n))
            assert difference(out[t, :n], wanted) < 1e-9


def test_scores_by_the_product_of_the_other_architecture_are_the_same(cuda, generator, monkeypatch):
    """SM100 multiplies warp by warp. SM90 has that instruction too, so its operands are tested here."""
    pages = paged.paged_scores
    monkeypatch.setattr(tensor_core, "has_wgmma", lambda: False)
    monkeypatch.setattr(paged, "paged_scores", kernel(cases=pages.cases, pass_configs=pages.pass_configs)(pages.make))
    test_scores_of_cached_keys_equal_fp64(cuda, generator, 32, 128, 64, [0, 1, 64, 65, 700])


def test_a_page_that_is_not_there_reads_as_the_null_block(cuda, generator):
    view = view_of(generator, 5, 64, 128)
    table = torch.tensor([[3, -1, 2], [-1, -1, -1]], dtype=torch.int32, device=cuda)
    lens, q = torch.tensor([170, 90], dtype=torch.int32, device=cuda), quantised(generator, 2, 32, 128)
    weights = torch.randn(2, 32, generator=generator, device=cuda)
    got, wanted = (
        indexer.logits(q, weights, view, context_lens=lens, block_table=t, max_k=192)
        for t in (table, table.clamp(min=0))
    )
    for t, n in enumerate((170, 90)):
        assert torch.equal(got[t, :n], wanted[t, :n])


def test_without_rows_or_pages_there_is_nothing_to_score(cuda, generator):
    view, q = view_of(generator, 5, 64, 128), quantised(generator, 2, 32, 128)
    weights, none = torch.randn(2, 32, device=cuda), torch.zeros(2, 0, dtype=torch.int32, device=cuda)
    zero = torch.zeros(2, dtype=torch.int32, device=cuda)
    assert bool((indexer.logits(q, weights, view, context_lens=zero, block_table=none, max_k=4) == -math.inf).all())
    empty = quantised(generator, 0, 32, 128)
    got = indexer.logits(empty, weights[:0], view, context_lens=zero[:0], block_table=none[:0], max_k=4)
    assert got.shape == (0, 4)


SPANS = [(0, 1), (0, 7), (0, 40), (40, 40), (40, 73), (73, 1120), (73, 119), (119, 120), (0, 1300), (3, 90),
         (1000, 1300), (1200, 1300), (1300, 1300)]  # fmt: skip


@pytest.mark.parametrize(("heads", "width"), [(32, 128), (64, 128), (4, 32)])
def test_scores_of_gathered_keys_equal_fp64_and_those_of_decode_bit_for_bit(cuda, generator, heads, width):
    q, keys = quantised(generator, len(SPANS), heads, width), quantised(generator, 1300, width)
    weights = torch.randn(len(SPANS), heads, generator=generator, device=cuda)
    first, last = (torch.tensor(x, dtype=torch.int32, device=cuda) for x in zip(*SPANS, strict=True))
    out = torch.full((len(SPANS), 1310), GUARD, device=cuda)
    indexer.logits(q, weights, keys, span=(first, last), max_k=1310, out=out)
    page = 64
    stored = -(-1300 // page)
    view = view_of(generator, stored, page, width)
    data, sf = view.split()
    for unit in range(stored):
        rows = slice(unit * page, min(1300, (unit + 1) * page))
        data[unit, : rows.stop - rows.start], sf[unit, : rows.stop - rows.start] = keys.data[rows], keys.sf[rows]
    table = torch.arange(stored, dtype=torch.int32, device=cuda).repeat(len(SPANS), 1)
    decode = indexer.logits(q, weights, view, context_lens=last, block_table=table, max_k=1300)
    for t, (a, b) in enumerate(SPANS):
        assert bool((out[t, b - a :] == GUARD).all())
        if b > a:
            wanted = scored(q.values[t], weights[t], keys.values[a:b].double())
            assert difference(out[t, : b - a], wanted) < 1e-9
            assert torch.equal(out[t, : b - a], decode[t, a:b])


def test_rows_without_keys_write_nothing(cuda, generator):
    spans = [(5, 5)] * 9 + [(0, 3000)]  # a whole group of such rows, and one beside another row
    q, keys = quantised(generator, len(spans), 4, 32), quantised(generator, 3000, 32)
    first, last = (torch.tensor(x, dtype=torch.int32, device=cuda) for x in zip(*spans, strict=True))
    weights = torch.randn(len(spans), 4, generator=generator, device=cuda)
    for rows in (8, 10):
        out = torch.full((rows, 3000), GUARD, device=cuda)
        part = QuantTensor.of_codes(q.data[:rows], q.sf[:rows], fmt="e2m1", group=32, sf_kind="ue8m0")
        indexer.logits(part, weights[:rows], keys, span=(first[:rows], last[:rows]), max_k=3000, out=out)
        assert bool((out[:9] == GUARD).all())
    assert difference(out[9], scored(q.values[9], weights[9], keys.values.double())) < 1e-9


@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize("paged", [True, False])
def test_scores_outside_candidates_are_minus_infinity(cuda, generator, block, paged):
    lengths, heads, width = [600, 1, 1500, 0, 59, 1100], 32, 128
    rows, longest = len(lengths), max(lengths)
    q = quantised(generator, rows, heads, width)
    weights = torch.randn(rows, heads, generator=generator, device=cuda)
    lens = torch.tensor(lengths, dtype=torch.int32, device=cuda)
    candidates = torch.randint(0, longest // block + 3, (rows, 40), generator=generator, device=cuda).int()
    candidates[:, 33:] = -1
    candidates[4], candidates[5] = -1, torch.arange(40, device=cuda).int() + 100
    if paged:
        view = view_of(generator, 70, 64, width)
        table = torch.randint(0, 70, (rows, -(-longest // 64)), generator=generator, device=cuda).int()
        where = {"context_lens": lens, "block_table": table}
    else:
        view, where = quantised(generator, 2000, width), {"span": (torch.full_like(lens, 7), lens + 7)}
    whole = indexer.logits(q, weights, view, max_k=longest, **where)
    got = indexer.logits(q, weights, view, max_k=longest, candidates=candidates, block=block, **where)
    for t, n in enumerate(lengths):
        inside = torch.isin(torch.arange(n, device=cuda) // block, candidates[t])
        assert torch.equal(got[t, :n], whole[t, :n].masked_fill(~inside, -math.inf))


def ranks(generator, kind, rows, n):
    device = generator.device
    x = torch.randn(rows, n, generator=generator, device=device)
    if kind == "ties":
        return torch.randint(-2, 3, (rows, n), generator=generator, device=device).float()
    if kind == "equal":
        return torch.full((rows, n), -0.5, device=device)
    if kind == "zeros":
        return torch.where(x < 0, -0.0, 0.0)
    if kind == "rising":
        return x.sort(1).values
    if kind == "clustered":
        x[:, n // 2 : n // 2 + n // 4] += 9
    if kind == "special":
        holes = torch.rand(rows, n, generator=generator, device=device)
        x[holes < 0.5] = -math.inf
        x[(holes > 0.5) & (holes < 0.55)] = math.inf
        x[(holes > 0.9) & (holes < 0.92)] = math.nan
        x[(holes > 0.92) & (holes < 0.94)] = -math.nan
    return x


def sorted_choice(scores, k, ends):
    """By a full stable sort."""
    wanted = torch.full((len(ends), k), -1, dtype=torch.int32)
    for t, end in enumerate(ends):
        row = scores[t, : min(end, scores.shape[1])].float().cpu()
        known = torch.nonzero(row > -math.inf).squeeze(1)
        best = known[torch.sort(-row[known], stable=True).indices[:k]].sort().values
        wanted[t, : len(best)] = best.int()
    return wanted


KINDS = ("normal", "ties", "equal", "zeros", "rising", "clustered", "special")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 1023, 2047, 2048, 2049, 8193, 16384, 32768])
def test_topk_equals_a_full_stable_sort(cuda, generator, kind, n):
    scores = ranks(generator, kind, 4, n)
    scores = scores.bfloat16() if n in (2048, 32_768) else scores
    ends = [n, max(n - 1, 0), n // 2, n + 5]
    end = torch.tensor(ends, dtype=torch.int32, device=cuda)
    for k in (1, 16, 512):
        got = indexer.topk(scores, k, end=end)
        assert torch.equal(got.cpu(), sorted_choice(scores, k, ends)), f"k {k}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "k"), [(100_000, 512), (131_072, 512), (40_000, 2048), (16_384, 2048), (9000, 4096)])
def test_topk_of_very_many_equals_a_full_stable_sort(cuda, generator, kind, n, k):
    scores = ranks(generator, kind, 3, n)
    ends = [n, n - 77, n // 3]
    offset = torch.tensor([0, 1000, -5], dtype=torch.int32, device=cuda)
    end = torch.tensor(ends, dtype=torch.int32, device=cuda)
    got, values = indexer.topk(scores, k, end=end, offset=offset, want_values=True)
    wanted = sorted_choice(scores, k, ends)
    known = wanted >= 0
    assert torch.equal(got.cpu(), torch.where(known, wanted + offset.cpu().unsqueeze(1), wanted))
    picked = scores.cpu().gather(1, wanted.clamp(min=0).long()).masked_fill(~known, -math.inf)
    assert torch.equal(values.cpu(), picked)


@pytest.mark.parametrize("extra", [0, 1, 3])
def test_topk_where_all_above_the_first_bound_are_wanted(cuda, generator, extra):
    """Exactly ``k`` values stand out, or a few more: the second search then ends at its first step, or late."""
    k, n = 16, 1000
    scores = torch.rand(8, n, generator=generator, device=cuda)
    places = torch.stack([torch.randperm(n, generator=generator, device=cuda)[: k + extra] for _ in range(8)])
    scores.scatter_(1, places, torch.rand(8, k + extra, generator=generator, device=cuda) + 2)
    got = indexer.topk(scores, k, end=torch.full((8,), n, dtype=torch.int32, device=cuda))
    assert torch.equal(got.cpu(), sorted_choice(scores, k, [n] * 8))


def test_topk_of_a_part_of_each_row_into_out(cuda, generator):
    scores = ranks(generator, "ties", 6, 999)[:, 3:503]
    end = torch.tensor([500, 0, 7, 499, 250, 1], dtype=torch.int32, device=cuda)
    out = torch.full((6, 16), -9, dtype=torch.int32, device=cuda)
    assert indexer.topk(scores, 16, end=end, out=out) is out
    assert torch.equal(out.cpu(), sorted_choice(scores, 16, end.tolist()))
    assert torch.equal(out.cpu(), plain_op("index.topk")(scores.cpu(), 16, end=end.cpu()))


def test_the_selection_is_captured_and_replays_on_new_values(cuda, generator):
    scores, end = torch.randn(8, 5000, generator=generator, device=cuda), torch.full((8,), 5000, device=cuda).int()
    indexer.topk(scores, 64, end=end)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = indexer.topk(scores, 64, end=end)
    scores.copy_(torch.randn(8, 5000, generator=generator, device=cuda))
    graph.replay()
    assert torch.equal(got.cpu(), sorted_choice(scores, 64, [5000] * 8))


@pytest.mark.parametrize(("n", "block"), [(1, 8), (7, 8), (8, 8), (4101, 8), (1024, 4), (999, 5), (4096, 64)])
def test_block_maxima_equal_those_of_cpu(cuda, generator, n, block):
    scores = ranks(generator, "special", 6, n + 4)[:, 4:]
    scores[0, : n // 3] = 3.4e38  # beyond the largest bf16
    valid = torch.tensor([n, 0, 1, n // 2, n - 1, n + 9], dtype=torch.int32, device=cuda)
    for given in (scores, scores.contiguous()):
        best, counts = indexer.block_max(given, valid, block)
        wanted, known = plain_op("index.block_max")(scores.cpu(), valid.cpu(), block)
        assert torch.equal(counts.cpu(), known)
        assert torch.equal(best.cpu().nan_to_num(nan=5.5), wanted.nan_to_num(nan=5.5))
