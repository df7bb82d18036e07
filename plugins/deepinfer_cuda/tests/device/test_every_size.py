"""Every number of rows, keys and columns from 1 to two tiles and one more, on a device: not only full tiles.

Widths are constants of a kernel, and have their tests in the files of their areas. All memory that an op makes or is
given lies between guards, and what an op has to fill holds huge numbers before.
"""

from types import SimpleNamespace

import pytest
import torch

from deepinfer_core.caches import CacheView
from deepinfer_core.conformance import samples
from deepinfer_core.conformance.guarded_memory import GuardedMemory
from deepinfer_core.conformance.reference import engram as engram_reference
from deepinfer_core.conformance.reference import mhc as mhc_reference
from deepinfer_core.conformance.reference import moe as moe_reference
from deepinfer_core.conformance.reference import quant as quant_reference
from deepinfer_cuda import grouped, products
from deepinfer_cuda.ops import (
    attention,
    cache,
    compress,
    engram,
    feed,
    indexer,
    meta,
    mhc,
    moe,
    norm,
    quant,
    sampling,
    transform,
)
from deepinfer_cuda.ops.gemm import dense, einsum_heads
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor

pytestmark = [pytest.mark.cuda, pytest.mark.timeout(120)]
BF16, EXACT = 4e-3, 0.0
"""Relative errors of a row: one value that is wrong in a row of up to 60,000 is above the first."""
TWO_TILES = range(1, 2 * 64 + 2)
"""Of the 64 rows or keys that most kernels take together."""
Q8 = ("e4m3", 32, "ue8m0")


@pytest.fixture
def g():
    print("seed 29")
    return torch.Generator().manual_seed(29)


def every(sizes, run, wanted, limit, cuda):
    """``run(n)`` gives tensors of n rows: the first n of those ``wanted``, within ``limit`` of the size of each row.

    ``wanted`` may be a function of n.
    """
    with GuardedMemory() as memory:
        for n in sizes:
            found = run(n)
            memory.verify()
            for place, (got, right) in enumerate(
                zip(found, wanted(n) if callable(wanted) else [w[:n] for w in wanted], strict=True)
            ):
                close(got, right, limit, f"{n}: result {place}")
    assert memory.guarded or cuda.type == "cpu"


def close(got, right, limit, where):
    right = right.to(got.device)
    assert got.shape == right.shape, where
    if not limit:
        floats = got.is_floating_point() and got.element_size() > 1
        assert torch.equal(*((t + 0.0 if floats else t) for t in (got, right))), where  # -0 is 0
        return
    got, right = got.double().flatten(1), right.double().flatten(1)
    wrong = ((got - right).norm(dim=1) > limit * right.norm(dim=1)).nonzero().flatten().tolist()
    assert not wrong, f"{where}: rows {wrong[:9]}"


# --- products ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("outputs", "inputs"), [(256, 256), (1792, 5120)])
def test_rows_of_a_product(cuda, g, outputs, inputs):
    codes, scale = samples.fp8_weight(g, outputs, inputs)
    w = quant.prepare_weight("w", codes.to(cuda), scale.to(cuda))
    x = samples.normal(g, TWO_TILES[-1], inputs)
    right = (x.double().to(cuda) @ quant_reference.weight_values(codes, scale).double().t().to(cuda)).cpu()
    every(TWO_TILES, lambda n: [dense(x[:n].to(cuda), w)], [right], BF16, cuda)
    if inputs == 256:
        every(TWO_TILES, lambda n: [dense(x[:n].to(cuda), w, out_dtype=torch.float32)], [right], 1e-5, cuda)


def test_rows_of_a_product_for_each_group_of_heads(cuda, g):
    codes, scale = samples.fp8_weight(g, 3 * 128, 256)
    w = quant.prepare_weight("w", codes.to(cuda), scale.to(cuda), use="heads:3")
    x = samples.normal(g, TWO_TILES[-1], 3, 256)
    values = quant_reference.weight_values(codes, scale).double().view(3, 128, 256)
    right = torch.einsum("tgk,gnk->tgn", x.double(), values)
    every(TWO_TILES, lambda n: [einsum_heads(x[:n].to(cuda), w)], [right], BF16, cuda)


@pytest.mark.parametrize("tile", [tile for _, tile in grouped.TILES])
def test_rows_of_an_expert(cuda, g, monkeypatch, tile):
    """Two other experts have a row each, before and behind the one whose rows are counted."""
    monkeypatch.setattr(grouped, "TILES", ((float("inf"), tile),))
    most, inner, hidden = 2 * tile + 1, 64, 256
    pairs = [[samples.fp4_weight(g, *size) for _ in range(8)] for size in ((2 * inner, hidden), (hidden, inner))]
    w1, w2 = (stack(each, cuda) for each in pairs)
    x, weight = samples.normal(g, most + 2, hidden), torch.rand(most + 2, 1, generator=g)
    idx = torch.full((most + 2, 1), 4)
    idx[0], idx[1] = 1, 6
    q = plain_op("quant.cast_per_token")(x)
    right = torch.zeros(most + 2, hidden, dtype=torch.float64)
    for e in (1, 4, 6):
        up, down = (quant_reference.weight_values(*each[e]).double() for each in pairs)
        rows = (idx == e).squeeze(1)
        right[rows] = moe_reference.expert(q.values[rows], weight[rows, 0], up, down, 10.0, Q8)

    def run(n):
        rows = QuantTensor(fmt="e4m3", group=32, sf_kind="ue8m0", sf=q.sf[: n + 2].to(cuda),
                           exact=q.values[: n + 2].bfloat16().to(cuda))  # fmt: skip
        d = moe.dispatch(rows, idx[: n + 2].to(cuda), weight[: n + 2].to(cuda))
        return [moe.combine(moe.experts(d, w1, w2, clamp=10.0), d.handle)]

    every(range(1, most + 1), run, lambda n: [right[: n + 2]], BF16, cuda)


def stack(pairs, cuda):
    codes, scales = (torch.stack([pair[i].view(torch.uint8) for pair in pairs]) for i in (0, 1))
    reach = (int(scales.min()) - 127, int(scales.max()) - 127)
    return PreparedWeight("w", "experts", "e2m1", codes.to(cuda), scales.to(cuda), 1, (), reach)


def test_tokens_of_the_gate(cuda, g, monkeypatch):
    """Bit for bit those of one large batch, which ``test_moe.py`` compares with the plain op, as it does the library's
    product, whose bits depend on the batch."""
    monkeypatch.setattr(products.SETTINGS, "batch_invariant", True)
    w = PreparedWeight(name="g", use="dense", fmt="bf16", stored=samples.normal(g, 384, 5120, scale=0.014).to(cuda))
    x, bias = samples.normal(g, 513, 5120).to(cuda), torch.rand(384, generator=g).to(cuda)
    whole = moe.gate(x, w, bias, k=6, scale=1.5)
    sizes = [*TWO_TILES, 191, 192, 193, 511, 512, 513]
    every(sizes, lambda n: moe.gate(x[:n].clone(), w, bias, k=6, scale=1.5), whole, EXACT, cuda)


# --- rows -------------------------------------------------------------------------------------------------------------


def test_rows_of_norm_cast_rotation_and_activation(cuda, g):
    most = TWO_TILES[-1]
    x, w = samples.uneven(g, most, 256), torch.randn(256, generator=g)
    right, _ = plain_op("norm.rms")(x, w, eps=1e-6)
    every(TWO_TILES, lambda n: norm.rms(x[:n].to(cuda), w.to(cuda), eps=1e-6)[:1], [right], BF16, cuda)
    codes = plain_op("quant.cast_per_token")(x)

    def cast(n):
        q = quant.cast_per_token(x[:n].to(cuda))
        return [q.sf, q.data, q.values]

    every(TWO_TILES, cast, [codes.sf, codes.data, codes.values], EXACT, cuda)
    heads, positions = samples.uneven(g, most, 32, 128), torch.randint(0, 500, (most,), generator=g)
    angles = plain_op("transform.rope_table")(500, 64, theta=10000.0)
    turned = plain_op("transform.rotary")(heads, (angles, positions, False))

    def turn(n):
        return [transform.rotary(heads[:n].to(cuda), (angles.to(cuda), positions[:n].to(cuda), False))]

    every(range(1, 34), turn, [turned], EXACT, cuda)
    both = samples.normal(g, most, 128, scale=4.0)
    activated = moe_reference.swiglu(both, 10.0)
    every(TWO_TILES, lambda n: [moe.swiglu(both[:n].to(cuda), clamp=10.0)], [activated], BF16, cuda)


def test_rows_of_hyper_connections(cuda, g):
    """Tiles of 64 rows; of 128 from 512 rows on."""
    sizes = [*TWO_TILES, 511, 512, 513, 639, 640, 641, 767, 768, 769]
    most, c, width = sizes[-1], 4, 256
    fn = torch.randn(c * (c + 2), c * width, generator=g) * (c * width) ** -0.5
    tensors = fn, torch.tensor([0.7, 1.3, 2.0]), torch.randn(c * (c + 2), generator=g)
    params = mhc.prepare(*(t.to(cuda) for t in tensors))
    stream, a = samples.normal(g, most, c, width), torch.rand(most, c, generator=g)
    y = samples.normal(g, most, width)
    mixing = mhc_reference.mixing(stream, *tensors)
    every(sizes, lambda n: mhc.pre(stream[:n].to(cuda), a[:n].to(cuda), params)[1:],
          [mixing.a, mixing.post, mixing.comb], 3e-5, cuda)  # fmt: skip
    every(sizes, lambda n: mhc.pre(stream[:n].to(cuda), a[:n].to(cuda), params)[:1],
          [mhc_reference.collapse(stream, a)], BF16, cuda)  # fmt: skip
    comb = torch.rand(most, c, c, generator=g)
    given = [y, stream, a, comb]
    every(TWO_TILES, lambda n: [mhc.post(*(t[:n].to(cuda) for t in given))], [mhc_reference.post(*given)], BF16, cuda)
    every(TWO_TILES, lambda n: [mhc.head(stream[:n].to(cuda), a[:n].to(cuda))],
          [mhc_reference.collapse(stream, a)], BF16, cuda)  # fmt: skip


def test_rows_of_engram(cuda, g):
    sizes = range(1, 2 * engram.GATE_GRID + 2)
    most, width = sizes[-1], 256
    ids, rows = torch.randint(0, 99092, (most, 4), generator=g), torch.randint(0, 300, (most, 6), generator=g)
    numbers = [torch.randint(2, 2**40, (size,), generator=g) for size in (4, 24, 24)]
    hashed = plain_op("engram.hash")(ids, *numbers)
    every(sizes, lambda n: [engram.hash(ids[:n].to(cuda), *(v.to(cuda) for v in numbers))], [hashed], EXACT, cuda)
    codes, _ = samples.fp8_weight(g, 300, 32)
    scale = torch.randint(100, 150, (300, 1), generator=g, dtype=torch.uint8)
    table = engram.prepare(codes.to(cuda), scale.to(cuda))
    fetched = plain_op("engram.fetch")(rows, plain_op("engram.prepare")(codes, scale))
    every(sizes, lambda n: [engram.fetch(rows[:n].to(cuda), table)], [fetched], EXACT, cuda)
    x, kv = samples.normal(g, most, 4, width), samples.normal(g, most, 5 * width, scale=2.0)
    weights = samples.normal(g, 4, width), samples.normal(g, 4, width)
    params = plain_op("engram.prepare_gate")(*(w.to(cuda) for w in weights))
    right = engram_reference.gate(x, kv, weights[0].double() * weights[1].double(), 1e-20, None)
    every(sizes, lambda n: [engram.gate(x[:n].to(cuda), kv[:n].to(cuda), params)], [right], BF16, cuda)


# --- caches and attention ---------------------------------------------------------------------------------------------


def entries(g, cuda, fmt, width, page, units):
    """A view of random numbers on the device, and the same bytes on the host."""
    size = {"v41": width + width // 32, "v41_fp4": width // 2 + width // 16, "index_fp4": width // 2 + width // 32}[fmt]
    stride = -(-page * size // 32) * 32 + 32
    raw = torch.randint(0, 256, (units * stride,), generator=g, dtype=torch.uint8)
    shape = (units, page * size), (stride, 1)
    if fmt != "index_fp4":
        shape = (units, page, size), (stride, size, 1)
    host = CacheView(raw.as_strided(*shape), fmt, page, stride, width)
    slots = torch.arange(units * page, dtype=torch.int32)
    plain_op("cache.store")(samples.normal(g, units * page, width, scale=0.25), host, slots)
    there = raw.to(cuda)
    return CacheView(there.as_strided(*shape), fmt, page, stride, width), host


@pytest.mark.parametrize("fmt", ["v41", "v41_fp4"])
def test_rows_of_a_cache(cuda, g, fmt):
    most, page, width = TWO_TILES[-1], 64, 512
    view, host = entries(g, cuda, fmt, width, page, 5)
    kv, slots = samples.normal(g, most, width), torch.randperm(5 * page, generator=g)[:most].int()

    def store(n):
        cache.store(kv[:n].to(cuda), view, slots[:n].to(cuda))
        return [view.tensor.flatten(1)]

    def stored(n):
        plain_op("cache.store")(kv[:n], host, slots[:n])
        return [host.tensor.flatten(1)]

    every(TWO_TILES, store, stored, EXACT, cuda)
    total = 4 * page
    runs = torch.tensor([[3, 0, page, 0], [0, 0, page, page], [4, 0, page, 2 * page], [1, 0, page, 3 * page]]).int()
    whole = plain_op("cache.load_segments")(host, runs, total).bfloat16()

    def load(n):
        part = runs.clone()
        part[:, 2] = (n - runs[:, 3]).clamp(0, page)
        return [cache.load_segments(view, part[part[:, 2] > 0].to(cuda), n).bfloat16()]

    every(TWO_TILES, load, [whole], EXACT, cuda)


@pytest.mark.parametrize(("heads", "width"), [(8, 64), (64, 512)])
def test_columns_and_heads_of_attention(cuda, g, heads, width):
    page, most = 32, TWO_TILES[-1]
    window, there = entries(g, cuda, "v41", width, page, 6)
    extra, their = entries(g, cuda, "v41_fp4", width, page, 6)
    kv = samples.normal(g, 6 * page, width, scale=0.25)
    idx, extra_idx = (torch.randint(0, 6 * page, (2, most), generator=g, dtype=torch.int32) for _ in range(2))
    q = samples.normal(g, 2, most, width, scale=4.0)
    scale = width**-0.5

    def decode(h, k1, k2, device, windows, extras):
        columns = [t[:, :k].contiguous().to(device) for t, k in ((idx, k1), (extra_idx, k2))]
        function = attention.sparse_decode if device == cuda else plain_op(attention.DECODE)
        more = {"extra": extras, "extra_idx": columns[1]} if k2 else {}
        return function(q[:, :h].contiguous().to(device), windows, columns[0], scale=scale, **more)

    def prefill(h, k, device):
        function = attention.sparse_prefill if device == cuda else plain_op(attention.PREFILL)
        given = (q[:, :h].contiguous(), kv, idx[:, :k].contiguous())
        return function(*(t.to(device) for t in given), scale=scale)

    def told(both):
        """Output, and log-sum-exp beside a 1, so that small ones are judged by a difference."""
        out, lse = both
        return [out, torch.stack([lse, torch.ones_like(lse)], 2)]

    def judged(run):
        def pair(n):
            return told(run(n, cuda))

        every(TWO_TILES, pair, lambda n: told(run(n, torch.device("cpu"))), 1e-2, cuda)

    views = {cuda.type: (window, extra), "cpu": (there, their)}
    judged(lambda n, d: decode(heads, n, 0, d, *views[d.type]))
    judged(lambda n, d: decode(heads, 5, n, d, *views[d.type]))
    judged(lambda n, d: prefill(heads, n, d))
    if width == 64:  # the kernels of 512 take heads in tiles too, and their plain op takes minutes for all of these
        judged(lambda n, d: decode(n, 70, 3, d, *views[d.type]))
        judged(lambda n, d: prefill(n, 70, d))


# --- selection --------------------------------------------------------------------------------------------------------


def sorted_choice(scores, k, ends):
    """By a full stable sort, on the device of ``scores``."""
    columns = torch.arange(scores.shape[1], device=scores.device)
    masked = scores.float().masked_fill(columns >= ends.unsqueeze(1), float("-inf"))
    best, order = masked.sort(dim=1, descending=True, stable=True)
    order, known = order[:, :k], best[:, :k] > float("-inf")
    far = scores.shape[1]
    chosen = torch.where(known, order, far).sort(1).values
    chosen = torch.nn.functional.pad(chosen, (0, k - chosen.shape[1]), value=far)
    return torch.where(chosen == far, -1, chosen).int()


def test_candidates_of_the_selection(cuda, g):
    """All numbers of columns up to 1,025, and around those that another number of threads or of blocks takes."""
    edges = [size + d for size in (2048, 8192, 16384, 32768, 65536) for d in (-1, 0, 1)]
    scores = torch.randint(-30, 30, (3, edges[-1]), generator=g).float().to(cuda)
    for k, sizes in ((7, range(1, 1026)), (512, [*range(500, 530), *edges])):

        def ends(n):
            return torch.tensor([n, max(1, n - 1), n // 2], dtype=torch.int32, device=cuda)

        def run(n, k=k, ends=ends):
            return [indexer.topk(scores[:, :n].contiguous(), k, end=ends(n))]

        every(sizes, run, lambda n, k=k, ends=ends: [sorted_choice(scores[:, :n], k, ends(n))], EXACT, cuda)


def test_visible_columns_of_the_selection(cuda, g):
    """Rows of every length in one call: what a row does not see changes nothing."""
    most = 2 * 2048 + 1
    scores = torch.randint(-9, 9, (most, most), generator=g, dtype=torch.int8).float().to(cuda)
    end = torch.arange(1, most + 1, dtype=torch.int32, device=cuda)
    assert torch.equal(indexer.topk(scores, 512, end=end), sorted_choice(scores, 512, end))


@pytest.mark.parametrize("block", [4, 8])
def test_columns_of_block_maxima(cuda, g, block):
    blocks = 2 * 128 * 4 * block
    scores = torch.randn(3, blocks + 1, generator=g)
    sizes = [*TWO_TILES, *(size + d for size in (blocks // 2, blocks) for d in (-1, 0, 1))]

    def run(n):
        return indexer.block_max(scores[:, :n].contiguous().to(cuda), valid(n).to(cuda), block)

    def valid(n):
        return torch.tensor([n, n // 2, 1], dtype=torch.int32)

    every(sizes, run, lambda n: plain_op("index.block_max")(scores[:, :n], valid(n), block), EXACT, cuda)


def test_keys_and_rows_of_index_scores(cuda, g):
    """Rows that see every number of keys up to two tiles and one more, as one batch and as parts of it."""
    page, heads, width, most = 64, 32, 128, TWO_TILES[-1]
    view, host = entries(g, cuda, "index_fp4", width, page, 4)
    q = plain_op("quant.cast_per_token")(samples.normal(g, most, heads, width), fmt="e2m1")
    weights = torch.randn(most, heads, generator=g)
    table = torch.randint(0, 4, (most, 3), generator=g, dtype=torch.int32)
    lens = torch.arange(most, 0, -1, dtype=torch.int32)
    seen = torch.arange(most) < lens.unsqueeze(1)
    whole = plain_op("index.logits")(q, weights, host, context_lens=lens, block_table=table, max_k=most)

    def run(n):
        part = QuantTensor.of_codes(q.data[:n].to(cuda), q.sf[:n].to(cuda), fmt="e2m1", group=32, sf_kind="ue8m0")
        given = {"context_lens": lens[:n].to(cuda), "block_table": table[:n].to(cuda), "max_k": most}
        got = indexer.logits(part, weights[:n].to(cuda), view, **given)
        return [got.masked_fill(~seen[:n].to(cuda), 0.0)]

    every(TWO_TILES, run, [whole.masked_fill(~seen, 0.0)], 1e-3, cuda)


# --- sampling, and integers of a step ---------------------------------------------------------------------------------


def test_rows_of_the_sampler(cuda, g):
    """Some rows are greedy: nothing is divided by their temperature of 0."""
    if cuda.type == "cpu":
        pytest.skip("the plain ops of the sampler are those of another distribution")
    most, width = 2 * sampling.MULTIPROCESSORS + 1, 1536
    logits = (torch.randn(most, width, generator=g) * 3).to(cuda)
    temperature = torch.tensor([0.0, 0.5, 1.0, 0.0])[torch.arange(most) % 4].to(cuda)
    keys = torch.randint(-(2**62), 2**62, (most,), generator=g).to(cuda)

    def params(n):
        rows = {"temperature": temperature, "top_p": torch.full_like(temperature, 0.9), "top_k": keys * 0 + 40}
        return SimpleNamespace(min_p=None, **{name: column[:n].clone() for name, column in rows.items()})

    def run(n):
        ids, peaks = sampling.best(logits[:n].clone())
        chances = sampling.logprobs(logits[:n].clone(), params(n))
        drawn = sampling.draw(chances, keys[:n].clone(), torch.arange(n, device=cuda).int())
        return [ids, peaks, chances, drawn]

    whole = run(most)
    greedy = temperature == 0
    assert torch.equal(whole[0], logits.argmax(1))
    assert not whole[2].isnan().any()
    assert torch.equal(whole[2][greedy].exp().sum(1), torch.ones(int(greedy.sum()), device=cuda))
    assert torch.equal(whole[3][greedy].long(), whole[0][greedy])
    every(range(1, most + 1), run, whole, EXACT, cuda)


def test_requests_of_the_metadata(cuda, g):
    most, q = 2 * 128 + 1, 6
    lengths = torch.randint(1, q + 1, (most,), generator=g).int()
    ends, tables = lengths + 90, torch.randint(0, 5000, (most, 40), generator=g).int()
    slots = torch.randint(0, 99, (most,), generator=g).int()
    options = {"block_size": 128, "window": 128, "ring": 134, "ratios_sparse": (2, 1)}
    fresh, sampled = (torch.randint(0, 500, shape, generator=g).int() for shape in ((most, q), (most,)))
    drafts = torch.randint(0, 500, (most, q - 1), generator=g).int()
    pairs = torch.stack([slots, lengths], 1)

    def results(n, device, ops):
        part = [t[:n].clone().to(device) for t in (lengths, ends, tables, slots, slots)]
        total = int(lengths[:n].sum())
        valid = torch.ones(total, dtype=torch.bool).to(device)
        found = [*flat(ops[0](*part, **options, valid=valid))]
        found += flat(ops[1](fresh[:n].to(device), part[0], None, sampled[:n].to(device), total, vocab_size=500,
                             drafts=drafts[:n].to(device), accepted=part[0] - 1))  # fmt: skip
        found += flat(ops[2](part[3], part[0], None, part[0] - 1, num_draft=q - 1))
        found += flat(ops[3](pairs[:n].to(device), 134, 33))
        return found

    names = ("meta.decode_metadata", "meta.feed_tokens", "meta.correct_lengths", "meta.window_index_decode")
    ours = meta.decode_metadata, feed.feed_tokens, feed.correct_lengths, meta.window_index_decode
    plain, host = [plain_op(name) for name in names], torch.device("cpu")
    sizes = [*TWO_TILES, *range(most - 3, most + 1)]
    every(sizes, lambda n: results(n, cuda, ours), lambda n: results(n, host, plain), EXACT, cuda)


def flat(found):
    """The tensors of a result, in the order of their names."""
    if isinstance(found, torch.Tensor):
        return [found]
    pairs = sorted(found.items(), key=lambda pair: str(pair[0])) if hasattr(found, "items") else enumerate(found)
    return [tensor for _, value in pairs for tensor in flat(value)]


@pytest.mark.parametrize("width", [512, 64])
def test_rows_of_the_compressor(cuda, g, width):
    """As many requests as there are rows; every second one completes a group."""
    most = 65
    ring = torch.randn(most, 7, 2, width, generator=g)
    both = torch.randn(most, 2 * width, generator=g)
    slots, lens = torch.randperm(most, generator=g).int(), torch.arange(7, most + 7).int()

    def run(n, device, op):
        state, given = ring.clone().to(device), both[:n].to(device)
        halves = given[:, :width], given[:, width:]
        out = op(*halves, state, slots[:n].to(device), lens[:n].to(device), 2, max_q=6, dtype=torch.float32)
        return [state.flatten(1), torch.cat([out, torch.ones_like(out)], 1)]

    plain = plain_op("compress.decode")
    every(range(1, most + 1), lambda n: run(n, cuda, compress.decode), lambda n: run(n, torch.device("cpu"), plain),
          1e-6, cuda)  # fmt: skip
