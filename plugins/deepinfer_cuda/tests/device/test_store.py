"""Norm, transform, quant, cache and compress on the device, against the ops of cpu: bytes, canaries, compositions."""

import pytest
import torch

from deepinfer_core.caches.arenas import CacheView
from deepinfer_core.interfaces import cpu_backend
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cuda.ops import cache, compress, norm, quant, transform

pytestmark = pytest.mark.cuda
SEED = 20261130
EPS = 1e-20
Q8, Q4MX, Q4NV, F8 = ("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0"), ("e2m1", 16, "e4m3"), ("e4m3", 128, "f32")
ENTRIES = [
    ("v41", 512, 134),
    ("v41", 64, 134),
    ("v41_fp4", 512, 64),
    ("v41_fp4", 64, 128),
    ("bf16", 512, 8),
    ("index_fp4", 128, 64),
    ("index_fp4", 32, 64),
    ("index_mxfp8", 128, 64),
    ("index_mxfp8", 32, 64),
    ("index_fp8", 128, 8),
]
"""Format, width and page."""


@pytest.fixture(scope="module")
def plain():
    return cpu_backend().ops


def uneven(*shape):
    """Rows of very different size."""
    size = torch.ldexp(torch.ones(*shape[:-1], 1), torch.randint(-12, 12, (*shape[:-1], 1)))
    return (torch.randn(*shape) * size).bfloat16()


def as_bytes(t):
    return t.detach().cpu().contiguous().view(torch.uint8)


def assert_same(got, expected):
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    got, expected = as_bytes(got).flatten(), as_bytes(expected).flatten()
    wrong = (got != expected).nonzero().flatten()
    assert not len(wrong), f"{len(wrong)} of {len(got)} bytes differ, first at {wrong[:4].tolist()} (seed {SEED})"


def assert_values(got, expected):
    """Equal as numbers: a zero's sign is not a value."""
    assert_same(got + 0.0, expected + 0.0)


def assert_quantised(q, expected):
    assert_same(q.sf, expected.sf)
    assert_same(q.data, expected.data)
    assert_values(q.values, expected.values)


@pytest.mark.parametrize("cast", [Q8, Q4MX, Q4NV, F8], ids=str)
@pytest.mark.parametrize("shape", [(0, 256), (1, 640), (33, 512), (3, 5, 128), (65, 1280)], ids=str)
def test_cast_of_any_shape_gives_the_bytes_of_cpu(cuda, plain, cast, shape):
    fmt, group, sf = cast
    x = uneven(*shape)
    expected = plain["quant.cast_per_token"](x, fmt=fmt, group=group, sf=sf)
    given = x.to(cuda)
    q = quant.cast_per_token(given, fmt=fmt, group=group, sf=sf)
    assert_quantised(q, expected)
    assert_same(given, x)
    assert_values(quant.dequantize(q), expected.values.bfloat16())


@pytest.mark.parametrize("cast", [Q8, Q4MX], ids=str)
def test_cast_of_every_bf16_number_gives_the_bytes_of_cpu(cuda, plain, cast):
    """All finite values, each in a group whose scale its neighbours do not change, and each as the largest."""
    fmt, group, sf = cast
    bits = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = bits[bits.isfinite()][: 65024 // 256 * 256]
    for grouped in (x.view(-1, 256), x.view(32, -1).t().contiguous()):
        expected = plain["quant.cast_per_token"](grouped, fmt=fmt, group=group, sf=sf)
        q = quant.cast_per_token(grouped.to(cuda), fmt=fmt, group=group, sf=sf)
        assert_same(q.sf, expected.sf)
        assert_same(q.data, expected.data)


def test_cast_into_another_result_overwrites_every_form_it_holds(cuda, plain):
    x = uneven(5, 256)
    out = quant.cast_per_token(torch.ones(5, 256, dtype=torch.bfloat16, device=cuda))
    assert {"data", "values"} <= {name for name in ("data", "values") if getattr(out, name) is not None}
    assert quant.cast_per_token(x.to(cuda), out=out) is out
    assert_quantised(out, plain["quant.cast_per_token"](x))


@pytest.mark.parametrize("width", [32, 64, 96, 256, 512, 640, 1280, 5120])
@pytest.mark.parametrize("rows", [1, 130])
def test_norm_is_that_of_cpu_but_for_roundings(cuda, plain, width, rows):
    x, w = uneven(rows, width), torch.randn(width)
    expected, _ = plain["norm.rms"](x, w, eps=EPS)
    y, _ = norm.rms(x.to(cuda), w.to(cuda), eps=EPS)
    error = (y.cpu().float() - expected.float()).abs() / expected.float().abs().clamp(min=1e-30)
    assert error.max() <= 2**-7
    assert (error > 0).sum() <= max(2, 1e-4 * error.numel())


@pytest.mark.parametrize("cast", [None, Q8, Q4MX], ids=str)
def test_norm_with_all_options_is_the_composition(cuda, plain, cast):
    x, old, w = uneven(9, 256), uneven(9, 256), torch.randn(256).bfloat16()
    residual = old.to(cuda)
    y, q = norm.rms(x.to(cuda), w.to(cuda), eps=1e-6, residual=residual, out_scale=3.0, cast=cast)
    assert_same(residual, old + x)
    alone, _ = norm.rms(residual, w.to(cuda), eps=1e-6, out_scale=3.0)
    assert_same(y, alone.cpu())
    if cast is not None:
        assert_quantised(q, plain["quant.cast_per_token"](y.cpu(), fmt=cast[0], group=cast[1], sf=cast[2]))
        nothing, same = norm.rms(residual, w.to(cuda), eps=1e-6, out_scale=3.0, cast=cast, want_bf16=False)
        assert nothing is None
        assert_same(same.data, q.data.cpu())


def table(rotary_dim):
    return cpu_backend().ops["transform.rope_table"](500, rotary_dim, theta=10000.0)


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize(("shape", "size"), [((5, 3, 64), 16), ((9, 64, 512), 64), ((4, 512), 64)], ids=str)
def test_rotary_gives_the_bytes_of_cpu_also_in_place(cuda, plain, shape, size, conjugate):
    x, angles = uneven(*shape), table(size)
    positions = torch.randint(0, 500, (shape[0],), dtype=torch.int32)
    expected = plain["transform.rotary"](x, (angles, positions, conjugate))
    rows = transform.rope_rows(angles.to(cuda), positions.to(cuda))
    given = x.to(cuda)
    assert_same(transform.rotary(given, (rows, conjugate)), expected)
    assert_same(given, x)
    assert transform.fused(given, rope=(rows, conjugate), out=given) is given
    assert_same(given, expected)


def test_rotary_of_a_part_of_wider_rows_leaves_the_rest(cuda, plain):
    wide, angles = uneven(6, 4 * 128 + 64), table(64)
    positions = torch.arange(6)
    given = wide.to(cuda)
    part = given[:, : 4 * 128].view(6, 4, 128)
    transform.fused(part, rope=(angles.to(cuda), positions.to(cuda), False), out=part)
    expected = wide.clone()
    expected[:, : 4 * 128] = plain["transform.rotary"](
        wide[:, : 4 * 128].reshape(6, 4, 128), (angles, positions, False)
    ).flatten(1)
    assert_same(given, expected)


class Arena:
    """A view in the middle of an arena full of noise, on the host and, alike, on the device."""

    def __init__(self, device, fmt, width, page, units=5):
        pool = "index" if fmt.startswith("index") else "main"
        layers = [CacheLayer(0, page, fmt, width), CacheLayer(3, page, fmt, width)]
        caches = cpu_backend().alloc_caches([CacheSpec("c", pool, layers)], {pool: units})
        self.view, self.slots = caches.view("c", 3), units * page
        storage = self.view.tensor.untyped_storage()
        self.host = torch.empty(0, dtype=torch.uint8).set_(storage)
        self.host.copy_(torch.randint(0, 256, self.host.shape, dtype=torch.uint8))
        self.there = self.host.to(device)
        t = self.view.tensor
        self.device_view = CacheView(
            self.there.as_strided(t.shape, t.stride(), t.storage_offset()), fmt, page, self.view.block_stride, width
        )

    def check(self):
        assert_same(self.there, self.host)


@pytest.mark.parametrize(("fmt", "width", "page"), ENTRIES, ids=str)
def test_store_and_load_give_the_bytes_of_cpu_and_touch_nothing_else(cuda, plain, fmt, width, page):
    arena = Arena(cuda, fmt, width, page)
    slots = torch.randperm(arena.slots)[:37].int()
    slots[[0, 7, 36]] = -1
    wide = uneven(37, 2 * width)
    kv = wide[:, width:]
    cache.store(wide.to(cuda)[:, width:], arena.device_view, slots.to(cuda))
    values = plain["cache.store"](kv, arena.view, slots, want_values=True)
    arena.check()
    if fmt not in ("bf16", "index_fp8"):
        assert_values(
            cache.store(kv.to(cuda), arena.device_view, slots.to(cuda), want_values=True).bfloat16(), values.bfloat16()
        )
        arena.check()
    everything = uneven(arena.slots, width)
    plain["cache.store"](everything, arena.view, torch.arange(arena.slots, dtype=torch.int32))
    arena.there.copy_(arena.host)
    runs = [[4, 0, page, 3], [1, page - 3, page, page + 3], [-1, 0, 5, page + 6], [2, 4, 4, page + 11]]
    runs += [[0, 2, 7, page + 12], [3, page - 1, page, 0]]
    segments, total = torch.tensor(runs, dtype=torch.int32), page + 21
    expected = torch.empty(total, width, dtype=torch.bfloat16)
    plain["cache.load_segments"](arena.view, segments, total, out=expected)
    out = torch.full((total, width), 7.0, dtype=torch.bfloat16, device=cuda)
    assert cache.load_segments(arena.device_view, segments.to(cuda), total, out=out) is out
    assert_values(out, expected)
    loaded = cache.load_segments(arena.device_view, segments.to(cuda), total)
    if fmt.startswith("index"):
        codes = plain["cache.load_segments"](arena.view, segments, total)
        assert_same(loaded.data, codes.data)
        assert_same(loaded.sf, codes.sf)
    else:
        assert_values(loaded, expected)
    arena.check()


def test_load_of_many_segments_finds_every_row(cuda, plain):
    arena = Arena(cuda, "v41_fp4", 512, 64, units=40)
    everything = uneven(arena.slots, 512)
    plain["cache.store"](everything, arena.view, torch.arange(arena.slots, dtype=torch.int32))
    arena.there.copy_(arena.host)
    starts = torch.randperm(arena.slots // 4)[:500]
    units, begin = starts * 4 // 64, starts * 4 % 64
    segments = torch.stack([units, begin, begin + 4, torch.randperm(510)[:500] * 4], 1).int()
    expected = plain["cache.load_segments"](arena.view, segments, 2040)
    assert_values(cache.load_segments(arena.device_view, segments.to(cuda), 2040), expected)


@pytest.mark.parametrize("rows", [1, 7, 300])
@pytest.mark.parametrize(("fmt", "width", "page"), ENTRIES, ids=str)
def test_fused_is_the_composition_bit_for_bit(cuda, fmt, width, page, rows):
    arena, second = Arena(cuda, fmt, width, page, units=300 // page + 1), None
    second = CacheView(
        arena.there.clone().as_strided(
            arena.view.tensor.shape, arena.view.tensor.stride(), arena.view.tensor.storage_offset()
        ),
        fmt,
        page,
        arena.view.block_stride,
        width,
    )
    x, w = uneven(rows, width).to(cuda), torch.randn(width, device=cuda)
    rope = (table(min(64, width // 2)).to(cuda), torch.randint(0, 500, (rows,), device=cuda), False)
    slots = torch.randperm(arena.slots, device=cuda)[:rows].int()
    slots[rows // 2 :: 5] = -1
    normed, _ = norm.rms(x, w, eps=EPS)
    turned = transform.rotary(normed, rope)
    cache.store(turned, second, slots)
    options = {"norm": (w, EPS), "rope": rope, "store": (arena.device_view, slots)}
    for stage, copy in (("norm", normed), ("transform", turned), (None, None)):
        result = transform.fused(x, **options, copy_stage=stage)
        if stage is None:
            assert result is None
        else:
            assert result[0] is None
            assert_same(result[1], copy.cpu())
        assert_same(arena.device_view.tensor, second.tensor.cpu())
    if fmt != "index_fp8":
        _, back = transform.fused(x, **options, copy_stage="cast_back")
        values = turned if fmt == "bf16" else cache.store(turned, second, slots, want_values=True).bfloat16()
        assert_values(back, values.cpu())


@pytest.mark.parametrize("cast", [Q8, Q4MX, Q4NV], ids=str)
def test_fused_cast_of_heads_is_the_composition(cuda, plain, cast):
    x, angles = uneven(11, 32, 128), table(64)
    rope = (angles.to(cuda), torch.randint(0, 500, (11,), dtype=torch.int32, device=cuda), False)
    q, back = transform.fused(x.to(cuda), rope=rope, cast=cast, copy_stage="cast_back")
    turned = plain["transform.rotary"](x, (angles, rope[1].cpu(), False))
    expected = plain["quant.cast_per_token"](turned, fmt=cast[0], group=cast[1], sf=cast[2])
    assert_quantised(q, expected)
    assert_values(back, expected.values.bfloat16())


def test_rows_do_not_depend_on_their_batch(cuda):
    x, w = uneven(300, 5120).to(cuda), torch.randn(5120, device=cuda)
    whole, _ = norm.rms(x, w, eps=EPS)
    for rows in (slice(0, 1), slice(17, 18), slice(100, 164)):
        assert_same(norm.rms(x[rows], w, eps=EPS)[0], whole[rows].cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [512, 64])
def test_compress_keeps_the_ring_of_cpu_and_its_entries(cuda, plain, width, dtype):
    """Chunks of every length, then decode steps with rows that are rejected; state byte for byte."""
    generator = torch.Generator().manual_seed(SEED)
    state = torch.randn(6, 7, 2, width, generator=generator)
    there = state.to(cuda)
    lengths = {4: 0, 0: 0, 2: 0}
    chosen, device = list(lengths), {"device": cuda}

    def judge(got, expected):
        error = (got.cpu().double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-30)
        assert error < (1e-6 if dtype == torch.float32 else 3e-3), f"seed {SEED}"
        assert_same(there, state)

    for counts in ((5, 1, 2), (1, 1, 1), (7, 8, 3), (6, 15, 1), (3, 2, 19)):
        rows, n = sum(counts), len(counts)
        both = torch.randn(rows, 2 * width, generator=generator)
        ends = [lengths[s] + c for s, c in zip(chosen, counts, strict=True)]
        groups = [max(1, e // 2 - lengths[s] // 2) for s, e in zip(chosen, ends, strict=True)]
        seq = torch.arange(n).repeat_interleave(torch.tensor(groups)).int()
        bounds = [
            torch.tensor([0, *torch.tensor(v).cumsum(0).tolist()], dtype=torch.int32) for v in (counts, ends, groups)
        ]
        slots = torch.tensor(chosen, dtype=torch.int32)
        expected = plain["compress.prefill"](
            both[:, :width], both[:, width:], state, slots, seq, *bounds, 2, dtype=dtype
        )
        moved = both.to(cuda)
        got = compress.prefill(
            moved[:, :width], moved[:, width:], there, slots.to(cuda), seq.to(cuda), *(b.to(cuda) for b in bounds), 2,
            dtype=dtype,
        )  # fmt: skip
        judge(got, expected)
        lengths = dict(zip(chosen, ends, strict=True))
    for counts in ((6, 1, 3), (2, 6, 6), (1, 1, 1), (6, 6, 6)):
        slots = torch.tensor(chosen).repeat_interleave(torch.tensor(counts)).int()
        context = torch.cat([torch.arange(1, c + 1) + lengths[s] for s, c in zip(chosen, counts, strict=True)]).int()
        slots, context = (
            torch.cat([slots, torch.tensor([-1, 3])]).int(),
            torch.cat([context, torch.tensor([4, 0])]).int(),
        )
        both = torch.randn(len(slots), 2 * width, generator=generator)
        expected = plain["compress.decode"](
            both[:, :width], both[:, width:], state, slots, context, 2, max_q=6, dtype=dtype
        )
        moved = both.to(cuda)
        got = compress.decode(
            moved[:, :width], moved[:, width:], there, slots.to(**device), context.to(cuda), 2, max_q=6, dtype=dtype
        )
        judge(got, expected)
        lengths = {s: lengths[s] + max(1, c - 2) for s, c in zip(chosen, counts, strict=True)}
    small, large = torch.randn(3, 2, width, generator=generator), torch.randn(9, 2, width, generator=generator)
    moved = large.to(cuda)
    compress.state_copy(small.to(cuda), moved, 131)
    plain["compress.state_copy"](small, large, 131)
    assert_same(moved, large)


@pytest.mark.parametrize("width", [512, 64])
def test_placeholder_rows_of_a_decode_step_touch_the_null_ring_alone(cuda, width):
    """A graph is filled up with rows of slot 0 at position 0 (``deepinfer_native.placeholder_inputs``). Whatever they
    hold, the other rings and rows have the bits that they have without them."""
    torch.manual_seed(SEED)
    real, filled = 5, 16
    score, latent = torch.randn(filled, width), torch.randn(filled, width)
    score[real:], latent[real:] = float("nan"), float("inf")
    slots = torch.tensor([3, 3, 1, 2, 4] + [0] * (filled - real), dtype=torch.int32)
    lengths = torch.tensor([7, 8, 130, 1, 6] + [1] * (filled - real), dtype=torch.int32)
    ring = torch.randn(6, 7, 2, width)
    outs, rings = [], []
    for rows in (real, filled):
        state = ring.to(cuda)
        given = [t[:rows].to(cuda) for t in (score, latent)]
        out = compress.decode(*given, state, slots[:rows].to(cuda), lengths[:rows].to(cuda), 2, max_q=6)
        outs.append(out[:real])
        rings.append(state)
        assert not out[real:].any()
    assert_same(*outs)
    assert_same(rings[0][1:], rings[1][1:])
    assert_same(rings[1][0, 1:].cpu(), ring[0, 1:])


def test_ops_can_be_captured_and_replayed(cuda):
    """One graph of a decode step's row work; a replay on other inputs equals the calls."""
    arena = Arena(cuda, "v41", 512, 134)
    x, w = uneven(6, 1280).to(cuda), torch.randn(1280, device=cuda)
    kv, kw = uneven(6, 512).to(cuda), torch.randn(512, device=cuda)
    slots, positions = torch.arange(6, dtype=torch.int32, device=cuda), torch.arange(6, dtype=torch.int32, device=cuda)
    angles = table(64).to(cuda)

    def step():
        rope = (transform.rope_rows(angles, positions), False)
        y, q = norm.rms(x, w, eps=EPS, cast=Q8)
        transform.fused(kv, norm=(kw, EPS), rope=rope, store=(arena.device_view, slots))
        return y, q.exact, q.sf, arena.device_view.tensor.clone()

    step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = step()
    x.copy_(uneven(6, 1280))
    kv.copy_(uneven(6, 512))
    positions.add_(100)
    slots.copy_(torch.tensor([9, -1, 8, 300, 2, 1], dtype=torch.int32))
    graph.replay()
    kept = [t.clone() for t in captured]
    for got, expected in zip(kept, step(), strict=True):
        assert_same(got, expected.cpu())
