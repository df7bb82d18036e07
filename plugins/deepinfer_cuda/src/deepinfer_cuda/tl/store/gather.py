"""Cache entries gathered into rows (``cache.load_segments``): a map of the tile's rows first, then the entries.

A block makes ``tile`` output rows. Its threads look through all segments, mark in shared memory which entry each of the
block's rows comes from, and rows that no segment names stay -1, which gives zeros. So there is one launch, nothing is
cleared beforehand, and segments may come in any order.
"""
# No postponed annotations: TileLang reads them as values.

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts import numbers as nf
from deepinfer_cuda.tl.parts.row_layout import CHUNK, WARP, row_layout

THREADS = 128

V41: dict[str, Any] = {"width": 512, "fmt": "e4m3", "group": 32, "sf": "ue8m0", "split": False, "unit": 16}
V41_FP4: dict[str, Any] = {"width": 512, "fmt": "e2m1", "group": 16, "sf": "e4m3", "split": False, "unit": 16}
INDEX_FP4: dict[str, Any] = {"width": 128, "fmt": "e2m1", "group": 32, "sf": "ue8m0", "split": True, "unit": 16}


@T.macro
def mark_tile(table, starts, segments, t, begin, page, count, tile):
    """``table[tile]``: the entry (unit * page + place) of each of the block's rows, -1 where there is none.

    Every segment marks, in each run of 32 rows that it reaches, the first row of its own; a row belongs to the last
    mark at or before it in its run, which a warp finds by a ballot.
    """
    segment = T.alloc_local((4,), "int32")
    mark = T.alloc_local((1,), "int32")
    own = T.alloc_local((1,), "int32")
    for r in list(range((tile + THREADS - 1) // THREADS)):
        if r * THREADS + t < tile:
            starts[r * THREADS + t] = -1
    T.sync_threads()
    for s in T.serial(T.ceildiv(count, THREADS)):
        if s * THREADS + t < count:
            for c in T.vectorized(4):
                segment[c] = segments[s * THREADS + t, c]
            for run in list(range(tile // WARP)):
                first = T.max(segment[3], begin + run * WARP)
                if first < T.min(segment[3] + segment[2] - segment[1], begin + (run + 1) * WARP):
                    starts[first - begin] = s * THREADS + t
    T.sync_threads()
    for r in list(range((tile + THREADS - 1) // THREADS)):
        row = r * THREADS + t
        if row < tile:  # whole warps
            marked = T.ballot_sync(starts[row] >= 0)
            at = nf.last_marked(T.cast(marked, "uint32"), t % WARP)
            mark[0] = -1
            if at >= 0:
                mark[0] = starts[row - t % WARP + at]
            own[0] = -1
            if mark[0] >= 0:
                for c in T.vectorized(4):
                    segment[c] = segments[mark[0], c]
                if segment[0] >= 0 and begin + row < segment[3] + segment[2] - segment[1]:
                    own[0] = segment[0] * page + segment[1] + begin + row - segment[3]
            table[row] = own[0]
    T.sync_threads()


@kernel(
    cases=[
        V41 | {"tile": 32, "unroll": 8},
        V41_FP4 | {"tile": 32, "unroll": 8},
        V41 | {"width": 64, "unit": 2, "tile": 32, "unroll": 2},
    ],
    pass_configs={"tl.disable_safe_memory_legalize": True},
)
def gather_rows(*, width: int, fmt: str, group: int, sf: str, split: bool, unit: int, tile: int, unroll: int):
    """Entries dequantised to bf16 ``[total, width]``. ``unit``: bytes that every address is a multiple of."""
    layout = row_layout(width)
    if layout is None or layout.lanes > 32:
        raise ValueError(f"entries of {width} values have no layout of a warp")
    lanes, chunks = layout.lanes, layout.chunks
    side = THREADS // lanes  # rows that the block reads at once
    words = {"e4m3": 2, "e2m1": 1, "raw": 4}[fmt]
    data_bytes = width // CHUNK * 4 * words
    scale_size = 4 if sf == "f32" else 1
    scale_bytes = width // group * scale_size if group else 0
    gl = max(1, group // CHUNK)
    every, some = list(range(chunks)), list(range(4))
    batches, each = tile // (side * unroll), list(range(unroll))
    if not batches:
        raise ValueError(f"a tile of {tile} rows is less than {side} rows times {unroll}")

    count, total, units, entries, unit_stride, entry_stride = T.dynamic(
        "count, total, units, entries, unit_stride, entry_stride"
    )
    if split:
        cache_type = T.StridedTensor((units, entries), (unit_stride, 1), "uint8")
    else:
        cache_type = T.StridedTensor(
            (units, entries, data_bytes + scale_bytes), (unit_stride, entry_stride, 1), "uint8"
        )

    @T.macro
    def fetch(code, i, cache, unit_id, entry, at):
        """Codes of eight values at byte ``at`` of an entry's data."""
        if split:
            if words == 2:
                code[i : i + 2] = T.ldg64(cache[unit_id, entry * data_bytes + at])
            elif words == 1:
                code[i] = T.ldg32(cache[unit_id, entry * data_bytes + at])
        elif unit >= 4 * words:
            if words == 4:
                code[i : i + 4] = T.ldg128(cache[unit_id, entry, at])
            elif words == 2:
                code[i : i + 2] = T.ldg64(cache[unit_id, entry, at])
            else:
                code[i] = T.ldg32(cache[unit_id, entry, at])
        elif unit >= 4:
            for k in list(range(words)):
                code[i + k] = T.ldg32(cache[unit_id, entry, at + 4 * k])
        else:
            for k in list(range(words)):
                code[i + k] = nf.load_pieces(T.address_of(cache[unit_id, entry, at + 4 * k]), unit)

    @T.macro
    def fetch_scale(scale, i, cache, unit_id, entry, first, page):
        """The scale of group ``first`` of an entry, as a byte or the bits of fp32."""
        if sf == "f32":
            scale[i] = T.ldg32(cache[unit_id, page * data_bytes + entry * scale_bytes + first * 4])
        elif split:
            scale[i] = T.cast(cache[unit_id, page * data_bytes + entry * scale_bytes + first], "uint32")
        else:
            scale[i] = T.cast(cache[unit_id, entry, data_bytes + first], "uint32")

    @T.macro
    def decode(v, code, i, scale):
        factor = T.alloc_local((1,), "uint32")
        number = T.alloc_local((1,), "float32")
        if sf == "ue8m0":
            factor[0] = nf.ue8m0_pair(scale)
        elif sf == "e4m3":
            number[0] = nf.e4m3(scale)
            factor[0] = nf.pack(number[0], number[0])
        elif sf == "f32":
            number[0] = T.reinterpret(scale, "float32")
        for c in some:
            if fmt == "raw":
                v[c] = code[i + c]
            else:
                v[c] = nf.e4m3_pair(code[i + c // 2], c % 2) if fmt == "e4m3" else nf.e2m1_pair(code[i], c)
                if sf == "f32":
                    v[c] = nf.pack(nf.lo(v[c]) * number[0], nf.hi(v[c]) * number[0])
                else:
                    v[c] = nf.mul2(v[c], factor[0])

    @T.prim_func
    def gather_rows(
        cache: cache_type,
        segments: T.Tensor((count, 4), "int32"),
        out: T.Tensor((total, width), "bfloat16"),
        page: T.int32,
    ):
        with T.Kernel(T.ceildiv(total, tile), threads=THREADS, prelude=nf.NUMBERS) as block:
            t = T.get_thread_binding()
            lane = t % lanes
            table = T.alloc_shared((tile,), "int32")
            starts = T.alloc_shared((tile,), "int32")
            code = T.alloc_local((unroll * chunks * words,), "uint32")
            scale = T.alloc_local((unroll * chunks,), "uint32")
            source = T.alloc_local((1,), "int32")
            place = T.alloc_local((unroll * 2,), "int32")  # unit, or -1 where nothing is read, and entry
            v = T.alloc_local((4,), "uint32")
            begin = block * tile
            T.pdl_sync()
            T.pdl_trigger()
            mark_tile(table, starts, segments, t, begin, page, count, tile)
            for batch in list(range(batches)):
                for u in each:
                    source[0] = table[(batch * unroll + u) * side + t // lanes]
                    place[2 * u] = T.if_then_else(source[0] >= 0, T.truncdiv(source[0], page), -1)
                    place[2 * u + 1] = source[0] - place[2 * u] * page
                    if place[2 * u] >= 0:
                        for j in every:
                            i, chunk = u * chunks + j, j * lanes + lane
                            fetch(code, i * words, cache, place[2 * u], place[2 * u + 1], chunk * 4 * words)
                            if fmt != "raw":
                                fetch_scale(scale, i, cache, place[2 * u], place[2 * u + 1], chunk // gl, page)
                for u in each:
                    row = begin + (batch * unroll + u) * side + t // lanes
                    if row < total:
                        for j in every:
                            decode(v, code, (u * chunks + j) * words, scale[u * chunks + j])
                            if place[2 * u] < 0:
                                for c in some:
                                    v[c] = T.uint32(0)
                            T.stg128(out[row, (j * lanes + lane) * CHUNK], v[0:4])

    return gather_rows


@kernel(
    cases=[
        {"data_bytes": 64, "scale_bytes": 4, "piece": 16, "tile": 128},
        {"data_bytes": 128, "scale_bytes": 4, "piece": 16, "tile": 128},
        {"data_bytes": 16, "scale_bytes": 1, "piece": 16, "tile": 128},
    ],
    pass_configs={"tl.disable_safe_memory_legalize": True},
)
def gather_codes(*, data_bytes: int, scale_bytes: int, piece: int, tile: int):
    """Codes and scales of entries whose page keeps all scales behind all codes, as they are stored.

    ``piece``: bytes that a thread moves at once (16 or 4).
    """
    pieces = data_bytes // piece
    rounds = tile * pieces // THREADS
    if data_bytes % piece or not rounds or tile * pieces % THREADS or tile != THREADS:
        raise ValueError(f"{data_bytes} bytes of {tile} rows do not divide into pieces of {piece}")
    count, total, units, entries, unit_stride = T.dynamic("count, total, units, entries, unit_stride")
    cache_type = T.StridedTensor((units, entries), (unit_stride, 1), "uint8")
    words = piece // 4

    @T.prim_func
    def gather_codes(
        cache: cache_type,
        segments: T.Tensor((count, 4), "int32"),
        codes: T.Tensor((total, data_bytes), "uint8"),
        scales: T.Tensor((total, scale_bytes), "uint8"),
        page: T.int32,
    ):
        with T.Kernel(T.ceildiv(total, tile), threads=THREADS, prelude=nf.NUMBERS) as block:
            t = T.get_thread_binding()
            table = T.alloc_shared((tile,), "int32")
            starts = T.alloc_shared((tile,), "int32")
            source = T.alloc_local((1,), "int32")
            place = T.alloc_local((2,), "int32")
            moved = T.alloc_local((rounds * words,), "uint32")
            scale = T.alloc_local((1,), "uint32")
            begin = block * tile
            T.pdl_sync()
            T.pdl_trigger()
            mark_tile(table, starts, segments, t, begin, page, count, tile)
            for i in list(range(rounds)):
                source[0] = table[(i * THREADS + t) // pieces]
                place[0] = T.truncdiv(source[0], page)
                place[1] = T.truncmod(source[0], page) * data_bytes + (i * THREADS + t) % pieces * piece
                for c in list(range(words)):
                    moved[i * words + c] = T.uint32(0)
                if source[0] >= 0:
                    if words == 4:
                        moved[i * 4 : i * 4 + 4] = T.ldg128(cache[place[0], place[1]])
                    else:
                        moved[i] = T.ldg32(cache[place[0], place[1]])
            for i in list(range(rounds)):
                row = begin + (i * THREADS + t) // pieces
                if row < total:
                    if words == 4:
                        T.stg128(codes[row, (i * THREADS + t) % pieces * piece], moved[i * 4 : i * 4 + 4])
                    else:
                        T.stg32(codes[row, (i * THREADS + t) % pieces * piece], moved[i])
            if begin + t < total:
                source[0] = table[t]
                place[0] = T.truncdiv(source[0], page)
                place[1] = page * data_bytes + T.truncmod(source[0], page) * scale_bytes
                if scale_bytes == 4:
                    scale[0] = T.uint32(0)
                    if source[0] >= 0:
                        scale[0] = T.ldg32(cache[place[0], place[1]])
                    T.stg32(scales[begin + t, 0], scale[0])
                else:
                    for c in list(range(scale_bytes)):
                        scale[0] = T.uint32(0)
                        if source[0] >= 0:
                            scale[0] = T.cast(cache[place[0], place[1] + c], "uint32")
                        scales[begin + t, c] = T.cast(scale[0], "uint8")

    return gather_codes
