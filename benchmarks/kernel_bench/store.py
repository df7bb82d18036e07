"""Norm, rotation, casts, cache store and load, compressor: at the released model's widths.

Bytes count every input and output once, as stored: rows in bf16, records of the cache in their format, the angles that
a row needs (64 fp32), slots and positions. Weights of norms are shared by all rows and counted once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.caches.arenas import CacheView
from deepinfer_cuda.ops import cache, compress, norm, quant, transform
from kernel_bench import peers
from kernel_bench.cases import Case, Maker

ROWS = (1, 8, 64, 256, 4096)
ENTRIES = (256, 4096, 65536)
POSITIONS = 32768
Q8, Q4MX = ("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0")
RECORD = {"v41": (512, 528), "v41_fp4": (512, 288), "index_fp4": (128, 68)}
"""Width and bytes of an entry."""
PAGE = 128
EPS = 1e-6
SHARE = 0.80


def cases(rows: Sequence[int] | None) -> list[Case]:
    """Every op of the area at ``rows`` (entries, for loads), or at the sizes of the tables in the documentation."""
    found: list[Case] = []
    for n in rows or ROWS:
        found += [*norms(n), *casts(n), *rotations(n), *stores(n), *compressions(n)]
    for n in rows or ENTRIES:
        found += loads(n)
    return found


def bf16(seed: int, *shape: int) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").bfloat16()


def positions(seed: int, n: int) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed + 1000)
    return torch.randint(0, POSITIONS, (n,), generator=generator, device="cuda", dtype=torch.int32)


def angles() -> Tensor:
    return torch.randn(POSITIONS, 64, device="cuda")


def arena(fmt: str, units: int) -> CacheView:
    """A view whose units lie apart, as layers of one arena do."""
    width, size = RECORD[fmt]
    stride = PAGE * size + (64 if fmt == "index_fp4" else 32 * size)
    memory = torch.randint(0, 100, (units * stride,), dtype=torch.uint8, device="cuda")
    if fmt == "index_fp4":
        tensor = memory.as_strided((units, PAGE * size), (stride, 1))
    else:
        tensor = memory.as_strided((units, PAGE, size), (stride, size, 1))
    return CacheView(tensor, fmt, PAGE, stride, width)


def norms(n: int) -> list[Case]:
    found = []
    for width in (5120, 1280, 512):

        def plain(i: int, width: int = width) -> Callable[[], Any]:
            x, w = bf16(i, n, width), torch.randn(width, device="cuda")
            return lambda: norm.rms(x, w, eps=EPS)

        def cast(i: int, width: int = width, want_bf16: bool = True) -> Callable[[], Any]:
            x, w = bf16(i, n, width), torch.randn(width, device="cuda")
            return lambda: norm.rms(x, w, eps=EPS, cast=Q8, want_bf16=want_bf16)

        def torch_norm(i: int, width: int = width) -> Callable[[], Any]:
            x, w = bf16(i, n, width), torch.randn(width, device="cuda").bfloat16()
            return lambda: torch.nn.functional.rms_norm(x, (width,), w, EPS)

        others = {"torch": torch_norm, **peers.peers(peers.norm(n, width, EPS))}
        found.append(Case("norm.rms", f"d {width}", n, 4.0 * n * width + 4 * width, plain, 0.0, others, SHARE))
        if width != 512:
            size = n * width * (6 + 1 / 32) + 4 * width
            others = peers.peers(peers.norm_cast(n, width, EPS, with_bf16=True))
            found.append(Case("norm.rms", f"d {width}, bf16 and Q8 values", n, size, cast, 0.0, others, SHARE))
            alone: Maker = lambda i, cast=cast: cast(i, want_bf16=False)  # noqa: E731
            size -= 2 * n * width
            others = peers.peers(peers.norm_cast(n, width, EPS, with_bf16=False))
            found.append(Case("norm.rms", f"d {width}, Q8 values", n, size, alone, 0.0, others, SHARE))
    return found


def casts(n: int) -> list[Case]:
    found = []
    for fmt, size in (("e4m3", 4.0), ("e2m1", 2.5)):

        def make(i: int, fmt: str = fmt) -> Callable[[], Any]:
            x = bf16(i, n, 5120)
            return lambda: quant.cast_per_token(x, fmt=fmt)

        form = "values" if fmt == "e4m3" else "codes"
        total = n * 5120 * (size + 1 / 32)
        others = peers.peers(peers.cast(n, 5120, fmt))
        found.append(Case("quant.cast_per_token", f"{fmt} {form}, d 5120", n, total, make, 0.0, others, SHARE))

    def codes(i: int) -> Callable[[], Any]:
        x = bf16(i, n, 5120)
        out = quant.cast_per_token(x)
        out = type(out).of_codes(out.data, out.sf, fmt="e4m3", group=32, sf_kind="ue8m0")
        return lambda: quant.cast_per_token(x, out=out)

    def back(i: int) -> Callable[[], Any]:
        q = quant.cast_per_token(bf16(i, n, 5120))
        q = type(q).of_codes(q.data, q.sf, fmt="e4m3", group=32, sf_kind="ue8m0")
        return lambda: quant.dequantize(q)

    size = n * 5120 * (3 + 1 / 32)
    others = peers.peers(peers.cast(n, 5120, "e4m3"))
    found.append(Case("quant.cast_per_token", "e4m3 codes, d 5120", n, size, codes, 0.0, others, SHARE))
    others = peers.peers(peers.cast_back(n, 5120))
    found.append(Case("quant.dequantize", "e4m3, d 5120", n, size, back, 0.0, others, SHARE))
    return found


def rotations(n: int) -> list[Case]:
    table = angles()

    def whole(i: int) -> Callable[[], Any]:
        x, rope = bf16(i, n, 64, 512), (transform.rope_rows(table, positions(i, n)), False)
        return lambda: transform.fused(x, rope=rope)

    def in_place(i: int) -> Callable[[], Any]:
        x, rope = bf16(i, n, 64, 512), (transform.rope_rows(table, positions(i, n)), True)
        return lambda: transform.fused(x, rope=rope, out=x)

    def index(i: int) -> Callable[[], Any]:
        x, rope = bf16(i, n, 32, 128), (transform.rope_rows(table, positions(i, n)), False)
        return lambda: transform.fused(x, rope=rope, cast=Q4MX)

    turn = 256 + 4
    return [
        Case("transform.fused", "rope, 64 x 512, new tensor", n, n * (64 * 2048 + turn), whole, target=SHARE),
        Case("transform.fused", "rope, 64 x 512, in place", n, n * (64 * 256 + turn), in_place, target=SHARE),
        Case("transform.fused", "rope and Q4, 32 x 128", n, n * (32 * (256 + 68) + turn), index, target=SHARE),
    ]


def stores(n: int) -> list[Case]:
    table, found = angles(), []
    units = max(4, -(-2 * n // PAGE))
    for fmt, stage in (("v41", None), ("v41", "cast_back"), ("v41", "norm"), ("v41_fp4", "norm"), ("index_fp4", None)):
        width, size = RECORD[fmt]

        def make(i: int, fmt: str = fmt, stage: str | None = stage, width: int = width) -> Callable[[], Any]:
            view, x, w = arena(fmt, units), bf16(i, n, width), torch.randn(width, device="cuda")
            slots = torch.randperm(units * PAGE, device="cuda")[:n].int()
            rope = (transform.rope_rows(table, positions(i, n)), False)
            options = {"norm": (w, EPS), "rope": rope, "store": (view, slots), "copy_stage": stage}
            return lambda: transform.fused(x, **options)

        total = n * (2.0 * width + size + 256 + 8 + (2 * width if stage else 0)) + 4 * width
        copy = f", copy of {stage}" if stage else ""
        found.append(Case("transform.fused", f"norm, rope, {fmt} store{copy}", n, total, make, target=SHARE))
    for fmt, (width, size) in RECORD.items():

        def plain(i: int, fmt: str = fmt, width: int = width) -> Callable[[], Any]:
            view, x = arena(fmt, units), bf16(i, n, width)
            slots = torch.randperm(units * PAGE, device="cuda")[:n].int()
            return lambda: cache.store(x, view, slots)

        found.append(Case("cache.store", fmt, n, n * (2.0 * width + size + 4), plain, target=SHARE))
    return found


def loads(n: int) -> list[Case]:
    found = []
    units = max(1, n // PAGE)
    for fmt, (width, size) in RECORD.items():

        def make(i: int, fmt: str = fmt) -> Callable[[], Any]:
            view = arena(fmt, units + 1)
            order, first = torch.randperm(units), torch.zeros(units, dtype=torch.int64)
            segments = torch.stack([order, first, first + min(n, PAGE), torch.arange(units) * PAGE], 1).int().cuda()
            return lambda: cache.load_segments(view, segments, n)

        out = size if fmt == "index_fp4" else 2 * width
        found.append(Case("cache.load_segments", fmt, n, n * float(size + out) + 16 * units, make, target=SHARE))
    return found


def compressions(n: int) -> list[Case]:
    """Decode steps of 1 and 6 rows a sequence, prefill chunks of up to 256; ratio 2, width 512, rings of 7."""
    found, width = [], 512
    for each in (1, 6):
        if n % each:
            continue

        def decode(i: int, each: int = each) -> Callable[[], Any]:
            both, count = torch.randn(n, 2 * width, device="cuda"), n // each
            state = torch.randn(count, 7, 2, width, device="cuda")
            slots = torch.arange(count, device="cuda").repeat_interleave(each).int()
            first = torch.arange(count, device="cuda").repeat_interleave(each) % 2
            context = (torch.arange(n, device="cuda") % each + first + 31).int()
            score, latent = both[:, :width], both[:, width:]
            return lambda: compress.decode(score, latent, state, slots, context, 2, max_q=each)

        # In and to the ring, 8 bytes a channel each; out 2; half of all rows complete a group, and read its other row.
        old = 8 * width / 2 / each
        size = n * (18 * width + old)
        found.append(Case("compress.decode", f"{each} rows a sequence", n, size, decode, target=SHARE))
    each = min(n, 256)
    if n < 64:
        return found

    def prefill(i: int) -> Callable[[], Any]:
        both, count = torch.randn(n, 2 * width, device="cuda"), n // each
        state = torch.randn(count, 7, 2, width, device="cuda")
        bounds = torch.arange(count + 1, device="cuda").int()
        slots, seq = bounds[:-1].clone(), bounds[:-1].repeat_interleave(each // 2)
        score, latent, cu_q = both[:, :width], both[:, width:], bounds * each
        cu_k, cu_c = bounds * (each + 32), bounds * (each // 2)
        return lambda: compress.prefill(score, latent, state, slots, seq, cu_q, cu_k, cu_c, 2)

    found.append(Case("compress.prefill", f"{each} rows a sequence", n, n * 9.0 * width, prefill, target=SHARE))
    return found
