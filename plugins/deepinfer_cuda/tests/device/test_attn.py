"""Sparse attention on the device against the plain op on the host, with memory that nobody lists full of NaN."""

import math

import pytest
import torch
from attrs import frozen

from deepinfer_contracts import OPS
from deepinfer_core.caches import CacheView
from deepinfer_core.conformance import tolerances
from deepinfer_cuda.ops import attention
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.unproven import all_serve

pytestmark = pytest.mark.cuda

SIZES = {"small": (8, 64), "released": (64, 512), "two blocks of heads": (128, 512), "few wide heads": (16, 512)}
WINDOW_PAGE, EXTRA_PAGE = 37, 32
SEED = 20261130
KEY_SIZE = 0.25
"""Standard deviation of keys, as in the kit: the classes have an absolute part, made for keys of that size."""


@pytest.fixture(autouse=True)
def kernels():
    """The kernels, whether or not they serve already."""
    with all_serve():
        yield


@frozen
class Entries:
    """A cache twice: the view on the device, and the same bytes on the host."""

    device: CacheView
    host: CacheView
    slots: int


def entries(fmt: str, width: int, units: int, page: int, generator: torch.Generator, cuda: torch.device) -> Entries:
    """A cache whose first unit is NaN bytes, like everything between the units."""
    size = {"v41": width + width // 32, "v41_fp4": width // 2 + width // 16}[fmt]
    stride = -(-page * size // 32) * 32 + 3 * 32
    raw = torch.full((units * stride + 64,), 255, dtype=torch.uint8)

    def view_of(memory: torch.Tensor) -> CacheView:
        return CacheView(memory.as_strided((units, page, size), (stride, size, 1), 32), fmt, page, stride, width)

    host = view_of(raw)
    slots = torch.arange(page, units * page, dtype=torch.int32)
    values = torch.randn(len(slots), width, generator=generator) * KEY_SIZE
    plain_op("cache.store")(values.bfloat16(), host, slots)
    return Entries(view_of(raw.to(cuda)), host, units * page)


def listed(rows: int, columns: int, first: int, last: int, generator: torch.Generator) -> torch.Tensor:
    """Slots int32 ``[rows, columns]``: full rows, holes, a tail without keys, nothing at all, one key several times.

    Not many times: its probability is rounded alike each time, so the errors would add up beyond the classes, which are
    made for errors that do not know of each other.
    """
    found = torch.randint(first, last, (rows, columns), generator=generator, dtype=torch.int32)
    found[1::5, ::3] = -1
    found[2::5, columns // 2 :] = -1
    found[3::5] = -1
    found[4::5, : min(columns // 2, 5)] = first
    return found


def poisoned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory with NaN around a tensor, and the tensor."""
    count = math.prod(shape)
    whole = torch.full((count + 128,), float("nan"), dtype=dtype, device=device)
    return whole, whole[64 : 64 + count].view(shape)


def judge(op: str, got: tuple[torch.Tensor, torch.Tensor], expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Output and log-sum-exp in the classes of the op table. The reference rounds its output once more than theirs."""
    tolerances.check(got[0].float().cpu(), expected[0].float(), OPS[op].tolerance, op=op)
    tolerances.check(got[1].cpu(), expected[1], tolerances.class_of(op, "lse"), op=op)


def on(device: torch.device, arguments: dict) -> dict:
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in arguments.items()}


class Decode:
    """A decode case, ``run`` on the device and ``expected`` from the plain op on the host."""

    def __init__(self, sizes: str, rows: int, k1: int, k2: int, extra: str, cuda: torch.device, *, full: bool = False):
        g = torch.Generator().manual_seed(SEED + 7 * rows + k1 + k2)
        heads, width = SIZES[sizes]
        self.cuda, self.extra = cuda, extra
        self.window = entries("v41", width, 9, WINDOW_PAGE, g, cuda)
        self.q = (torch.randn(rows, heads, width, generator=g) / KEY_SIZE).bfloat16()
        self.idx = listed(rows, k1, WINDOW_PAGE, self.window.slots, g)
        self.more: dict = {"scale": width**-0.5}
        if full:
            self.more["sink"] = torch.randn(heads, generator=g) * 3
            self.more["lengths"] = torch.randint(0, k1 + 1, (rows,), generator=g, dtype=torch.int32)
        if extra:
            self.main = entries(extra, width, 11, EXTRA_PAGE, g, cuda)
            self.more["extra_idx"] = listed(rows, k2, EXTRA_PAGE, self.main.slots, g)
            if full:
                self.more["extra_lengths"] = torch.randint(0, k2 + 1, (rows,), generator=g, dtype=torch.int32)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        extra = {"extra": self.main.host} if self.extra else {}
        return plain_op(attention.DECODE)(self.q, self.window.host, self.idx, **extra, **self.more)

    def run(self, rows: torch.Tensor | None = None, out: torch.Tensor | None = None, *, invariant: bool = False):
        more = on(self.cuda, self.more) | {"plan": attention.plan(batch_invariant=invariant)}
        q, idx = self.q.to(self.cuda), self.idx.to(self.cuda)
        if rows is not None:
            where = rows.to(self.cuda)
            q, idx = q[where], idx[where]
            per_row = ("lengths", "extra_idx", "extra_lengths")
            more |= {name: more[name][where] for name in per_row if name in more}
        if self.extra:
            more["extra"] = self.main.device
        return attention.sparse_decode(q, self.window.device, idx, out=out, **more)


@pytest.mark.parametrize("full", [False, True], ids=["plain", "sink, lengths"])
@pytest.mark.parametrize("extra", ["", "v41", "v41_fp4"])
@pytest.mark.parametrize(
    ("sizes", "rows", "k1", "k2"),
    [
        ("small", 11, 32, 16), ("small", 1, 1, 1), ("small", 6, 130, 77), ("released", 11, 128, 512),
        ("released", 1, 1, 1), ("released", 6, 65, 129), ("released", 5, 128, 1100), ("released", 150, 64, 63),
        ("released", 140, 128, 512), ("released", 100, 128, 200), ("released", 300, 64, 63),
        ("two blocks of heads", 5, 128, 512), ("few wide heads", 5, 128, 200),
    ],
)  # fmt: skip
def test_decode_attends_to_listed_entries_only(cuda, sizes, rows, k1, k2, extra, full):
    case = Decode(sizes, rows, k1, k2, extra, cuda, full=full)
    expected = case.expected()
    for invariant in (False, True):  # few rows are cut into more pieces where bits may depend on the batch
        whole, out = poisoned(tuple(case.q.shape), torch.bfloat16, cuda)
        got = case.run(out=out, invariant=invariant)
        assert got[0] is out
        judge(attention.DECODE, got, expected)
        assert torch.cat([whole[:64], whole[-64:]]).isnan().all(), "written outside"


@pytest.mark.parametrize("sizes", ["small", "released"])
def test_decode_rows_have_the_same_bits_in_any_batch(cuda, sizes):
    case = Decode(sizes, 12, 128, 300, "v41_fp4", cuda, full=True)
    whole = case.run(invariant=True)
    g = torch.Generator().manual_seed(SEED)
    for rows in (torch.tensor([5]), torch.arange(12).flip(0), torch.randperm(12, generator=g)[:7].repeat(30)):
        out, lse = case.run(rows, invariant=True)
        assert torch.equal(out.view(torch.int16), whole[0][rows.to(cuda)].view(torch.int16))
        assert torch.equal(lse, whole[1][rows.to(cuda)])


@pytest.mark.parametrize(
    ("fmt", "width"), [("v41", 512), ("v41_fp4", 512), ("v41", 64), ("v41_fp4", 64)], ids=lambda v: str(v)
)
def test_a_single_key_comes_back_bit_for_bit_whatever_its_codes(cuda, fmt, width):
    """One key has probability 1, so the output is the key: every code under many scales. A NaN code makes the score
    NaN, and with it the whole row."""
    page, units = 32, 40
    generator = torch.Generator().manual_seed(SEED)
    made = entries(fmt, width, units, page, generator, cuda)
    data = width if fmt == "v41" else width // 2
    codes = torch.randint(0, 256, made.host.tensor.shape, generator=generator, dtype=torch.uint8)
    if fmt == "v41":
        codes[: units // 2, :, :data][codes[: units // 2, :, :data] & 127 == 127] = 0  # the other half keeps its NaN
        codes[..., data:] = torch.randint(0, 246, codes[..., data:].shape, generator=generator, dtype=torch.uint8)
        codes[0, :, data:] = torch.tensor([0, 1, 2, 7, 8, 119, 133, 134, 135, 136, 200, 240, 245, 246, 127, 100])[
            : codes.shape[-1] - data
        ].to(torch.uint8)
    else:
        scales = codes[..., data:]
        scales[: units // 2][scales[: units // 2] & 127 == 127] = 1
    made.host.tensor.copy_(codes)
    made.device.tensor.copy_(codes.to(cuda))
    idx = torch.arange(made.slots, dtype=torch.int32)[:, None]
    q = torch.zeros(made.slots, 8, width, dtype=torch.bfloat16)
    values = plain_op("cache.load_segments")(
        made.host, torch.tensor([[u, 0, page, u * page] for u in range(units)], dtype=torch.int32), made.slots
    ).bfloat16()
    empty = torch.zeros(made.slots, 0, dtype=torch.int32, device=cuda)
    window = made.device if fmt == "v41" else entries("v41", width, 2, page, generator, cuda).device
    extra = {} if fmt == "v41" else {"extra": made.device, "extra_idx": idx.to(cuda)}
    got, _ = attention.sparse_decode(q.to(cuda), window, idx.to(cuda) if fmt == "v41" else empty, scale=1.0, **extra)
    assert got.is_cuda
    assert values.isnan().any()
    nan_row = values.isnan().any(1)
    assert torch.equal(got.isnan().cpu()[:, 0], nan_row[:, None].expand_as(values))
    # +0 and -0 are one value: a product with 1 keeps the sign, the sum with 0 does not
    assert torch.equal(got[:, 3].cpu()[~nan_row] + 0, values[~nan_row] + 0)
    assert torch.equal(got[:, 0].view(torch.int16), got[:, 7].view(torch.int16))


@pytest.mark.parametrize("fmt", ["v41", "v41_fp4"])
@pytest.mark.parametrize("invariant", [False, True])
def test_missing_keys_are_nothing_behind_keys_of_far_scales(cuda, fmt, invariant):
    """Lanes that bring an entry of a far scale and then none. Each row lists one key 128 times, then no more."""
    page, units, rows, width = 32, 5, 140, 512
    generator = torch.Generator().manual_seed(SEED)
    made = entries(fmt, width, units, page, generator, cuda)
    data = width if fmt == "v41" else width // 2
    codes = torch.randint(0, 256, made.host.tensor.shape, generator=generator, dtype=torch.uint8)
    if fmt == "v41":
        codes[..., :data][codes[..., :data] & 127 == 127] = 0
    codes[..., data:] = 135 if fmt == "v41" else 0x7E
    made.host.tensor.copy_(codes)
    made.device.tensor.copy_(codes.to(cuda))
    idx = torch.full((rows, 640), -1, dtype=torch.int32)
    idx[:, :128] = (torch.arange(rows, dtype=torch.int32) % made.slots)[:, None]
    values = plain_op("cache.load_segments")(
        made.host, torch.tensor([[u, 0, page, u * page] for u in range(units)], dtype=torch.int32), made.slots
    ).bfloat16()[idx[:, 0].long()]
    q = torch.zeros(rows, 64, width, dtype=torch.bfloat16, device=cuda)
    more = {"scale": 1.0, "plan": attention.plan(batch_invariant=invariant)}
    if fmt == "v41":
        got, _ = attention.sparse_decode(q, made.device, idx.to(cuda), **more)
    else:
        window = entries("v41", width, 2, page, generator, cuda).device
        empty = torch.zeros(rows, 0, dtype=torch.int32, device=cuda)
        got, _ = attention.sparse_decode(q, window, empty, extra=made.device, extra_idx=idx.to(cuda), **more)
    assert torch.equal(got[:, 5].cpu() + 0, values + 0)


class Prefill:
    def __init__(self, sizes: str, rows: int, keys: int, columns: int, *, full: bool):
        g = torch.Generator().manual_seed(SEED + rows + keys + columns)
        heads, width = SIZES[sizes]
        self.q = (torch.randn(rows, heads, width, generator=g) / KEY_SIZE).bfloat16()
        self.kv = (torch.randn(keys + 1, width, generator=g) * KEY_SIZE).bfloat16()
        self.kv[0] = float("nan")
        self.indices = listed(rows, columns, 1, keys + 1, g)
        self.indices[::2, -1] = keys + 1
        self.more: dict = {"scale": width**-0.5}
        if full:
            self.more["sink"] = torch.randn(heads, generator=g) * 3
            self.more["lengths"] = torch.randint(0, columns + 1, (rows,), generator=g, dtype=torch.int32)

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        return plain_op(attention.PREFILL)(self.q, self.kv, self.indices, **self.more)

    def run(self, cuda: torch.device, rows: slice = slice(None), out: torch.Tensor | None = None):
        more = on(cuda, self.more)
        if "lengths" in more:
            more["lengths"] = more["lengths"][rows]
        return attention.sparse_prefill(
            self.q.to(cuda)[rows], self.kv.to(cuda), self.indices.to(cuda)[rows], out=out, **more
        )


@pytest.mark.parametrize("full", [False, True], ids=["plain", "sink, lengths"])
@pytest.mark.parametrize(
    ("sizes", "rows", "keys", "columns"),
    [
        ("small", 12, 90, 48), ("small", 1, 1, 1), ("small", 7, 33, 65), ("released", 11, 900, 640),
        ("released", 1, 1, 1), ("released", 300, 700, 65), ("released", 6, 64, 1280),
        ("two blocks of heads", 5, 200, 640), ("few wide heads", 5, 200, 100),
    ],
)  # fmt: skip
def test_prefill_attends_to_listed_rows_only(cuda, sizes, rows, keys, columns, full):
    case = Prefill(sizes, rows, keys, columns, full=full)
    whole, out = poisoned(tuple(case.q.shape), torch.bfloat16, cuda)
    got = case.run(cuda, out=out)
    assert got[0] is out
    judge(attention.PREFILL, got, case.expected())
    assert torch.cat([whole[:64], whole[-64:]]).isnan().all(), "written outside"


@pytest.mark.parametrize("sizes", ["small", "released"])
def test_prefill_rows_have_the_same_bits_in_any_chunk(cuda, sizes):
    case = Prefill(sizes, 300, 500, 200, full=True)
    whole = case.run(cuda)
    for rows in (slice(0, 1), slice(7, 140), slice(140, 300), slice(299, 300)):
        out, lse = case.run(cuda, rows)
        assert torch.equal(out.view(torch.int16), whole[0][rows].view(torch.int16))
        assert torch.equal(lse, whole[1][rows])


@pytest.mark.parametrize("sizes", ["small", "released"])
def test_queries_may_be_strided_between_rows(cuda, sizes):
    case = Prefill(sizes, 9, 50, 64, full=False)
    rows, heads, width = case.q.shape
    wide = torch.full((rows, heads * width + 128), float("nan"), dtype=torch.bfloat16, device=cuda)
    wide[:, : heads * width] = case.q.view(rows, -1).to(cuda)
    q = wide[:, : heads * width].view(rows, heads, width)
    got = attention.sparse_prefill(q, case.kv.to(cuda), case.indices.to(cuda), scale=case.more["scale"])
    assert torch.equal(got[0].view(torch.int16), case.run(cuda)[0].view(torch.int16))


@pytest.mark.parametrize("sizes", ["small", "released"])
def test_a_row_of_nan_stays_alone_and_large_scores_overflow_nowhere(cuda, sizes):
    case = Prefill(sizes, 6, 40, 70, full=False)
    case.q *= 40
    case.q[1] = float("nan")
    case.indices[5] = -1
    case.q[5] = float("nan")
    for sink in (-60.0, 0.0, 60.0):
        case.more["sink"] = torch.full((case.q.shape[1],), sink)
        judge(attention.PREFILL, case.run(cuda), case.expected())


@pytest.mark.parametrize("sizes", ["small", "released"])
def test_no_rows_and_no_columns_give_nothing(cuda, sizes):
    heads, width = SIZES[sizes]
    case = Decode(sizes, 6, 4, 3, "v41_fp4", cuda)
    none = torch.arange(0)
    out, lse = case.run(none)
    assert out.shape == (0, heads, width)
    assert lse.shape == (0, heads)
    empty = torch.zeros(6, 0, dtype=torch.int32, device=cuda)
    out, lse = attention.sparse_decode(case.q.to(cuda), case.window.device, empty, scale=1.0)
    assert not out.any()
    assert (lse == math.inf).all()
    out, lse = attention.sparse_prefill(
        case.q.to(cuda), torch.zeros(0, width, dtype=torch.bfloat16, device=cuda), torch.zeros_like(case.idx).to(cuda),
        scale=1.0,
    )  # fmt: skip
    assert not out.any()
    assert (lse == math.inf).all()


def test_decode_and_prefill_are_captured_and_replayed_with_new_inputs(cuda):
    case = Decode("released", 8, 128, 512, "v41_fp4", cuda, full=True)
    first = case.run()
    more, q, idx = on(cuda, case.more), case.q.to(cuda), case.idx.to(cuda)
    out = torch.empty_like(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, lse = attention.sparse_decode(q, case.window.device, idx, extra=case.main.device, out=out, **more)
    q.copy_(q.flip(0))
    idx.copy_(idx.flip(0))
    for name in ("lengths", "extra_idx", "extra_lengths"):
        more[name].copy_(more[name].flip(0))
    graph.replay()
    assert torch.equal(out.view(torch.int16), first[0].flip(0).view(torch.int16))
    assert torch.equal(lse, first[1].flip(0))


def test_fp32_queries_take_the_plain_op_and_round_nothing(cuda):
    case = Prefill("small", 6, 40, 20, full=True)
    case.q, case.kv = case.q.float(), case.kv.float()
    got = case.run(cuda)
    assert got[0].dtype is torch.float32
    expected = case.expected()
    torch.testing.assert_close(got[0].cpu(), expected[0], rtol=1e-4, atol=1e-5)
