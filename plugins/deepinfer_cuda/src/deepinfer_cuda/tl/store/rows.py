"""Rows through the stages residual, norm, rotation, quantisation and store, in registers (``spec/kernels.md`` 2.1).

One kernel for ``norm.rms``, ``transform.fused``, ``transform.rotary``, ``quant.cast_per_token`` and ``cache.store``:
stages that are not asked for are not in it. A row is held by up to 128 threads as packed bf16 pairs (``row_layout``);
after each stage it is rounded to bf16, so that a fused call equals the calls it replaces, bit for bit.
"""
# No postponed annotations: TileLang reads them as values.

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts import numbers as nf
from deepinfer_cuda.tl.parts.row_layout import BLOCK, CHUNK, WARP, row_layout
from deepinfer_cuda.tl.store.encode import decoder, encoder
from deepinfer_cuda.tl.store.place import placer, putter

PLAIN: dict[str, Any] = {
    "width": 512,
    "heads": 1,
    "residual": False,
    "norm": "",
    "scaled": False,
    "rope": 0,
    "conjugate": False,
    "positions": "int32",
    "fmt": "",
    "group": 0,
    "sf": "",
    "target": "",
    "unit": 0,
    "exact": False,
    "out": False,
    "copy": False,
    "unroll": 1,
    "early": True,
    "resident": 1,
    "chained": True,
}
"""No stage at all: what a call wants is put over it."""
Q8: dict[str, Any] = {"fmt": "e4m3", "group": 32, "sf": "ue8m0"}
Q4: dict[str, Any] = {"fmt": "e2m1", "group": 32, "sf": "ue8m0"}
FP4: dict[str, Any] = {"fmt": "e2m1", "group": 16, "sf": "e4m3"}
KV: dict[str, Any] = {"width": 512, "norm": "float32", "rope": 64}

CASES = [
    PLAIN | case
    for case in (
        {"width": 5120, "norm": "float32", "out": True},
        {"width": 5120, "norm": "float32", "out": True, "exact": True, **Q8, "target": "scales"},
        {"width": 1280, "norm": "float32", "out": True, "exact": True, **Q8, "target": "scales"},
        {"width": 256, "norm": "float32", "out": True, "exact": True, **Q8, "target": "scales"},
        {"width": 512, "heads": 10, "exact": True, **Q8, "target": "scales"},
        {"width": 128, "heads": 32, "rope": 64, **Q4, "target": "codes"},
        {"width": 128, "heads": 32, "rope": 64, **Q4, "target": "codes", "unroll": 4},
        {"width": 64, "heads": 64, "rope": 64, "out": True, "unroll": 4},
        {"width": 64, "heads": 64, "rope": 64, "out": True, "conjugate": True, "unroll": 4},
        KV | Q8 | {"target": "cache", "unit": 16},
        KV | Q8 | {"target": "cache", "unit": 16, "exact": True},
        KV | FP4 | {"target": "cache", "unit": 16, "copy": True},
        {"width": 128, "norm": "float32", "rope": 64, **Q4, "target": "split", "unit": 4},
        {"width": 64, "norm": "float32", "rope": 16, **Q8, "target": "cache", "unit": 2},
    )
]


@kernel(cases=CASES, pass_configs={"tl.disable_safe_memory_legalize": True})
def rows(
    *,
    width: int,
    heads: int,
    residual: bool,
    norm: str,
    scaled: bool,
    rope: int,
    conjugate: bool,
    positions: str,
    fmt: str,
    group: int,
    sf: str,
    target: str,
    unit: int,
    exact: bool,
    out: bool,
    copy: bool,
    unroll: int,
    early: bool,
    resident: int,
    chained: bool,
):
    """``norm``: dtype of the weight, or "". ``rope``: values rotated at a row's end. ``target``: where what is
    quantised goes: ``codes`` (beside scales), ``scales`` alone, ``cache`` (an entry's scales behind its codes),
    ``split`` (a page's scales behind its codes), or "". ``unit``: bytes that every address in the cache is a multiple
    of. ``exact``: write the dequantised value. ``out``: write what the last stage before the cast made; ``copy``: what
    the norm made. ``unroll``: rows that a thread has in flight.
    """
    layout = row_layout(width)
    if layout is None:
        raise ValueError(f"rows of {width} values have no layout")
    lanes, chunks, groups = layout.lanes, layout.chunks, layout.groups
    warps = max(1, lanes // WARP)
    held = chunks * 4  # pairs of a row in a thread
    per_block = groups * unroll
    gl = max(1, group // CHUNK)  # threads that share a scale
    code_words = 2 if fmt == "e4m3" else 1
    row_bytes = {"e4m3": width, "e2m1": width // 2, "raw": 2 * width, "": 0}[fmt]
    scale_size = 4 if sf == "f32" else 1
    scale_bytes = width // group * scale_size if group else 0
    # Four scale bytes go out as one word where four groups lie side by side in a warp and the address allows it.
    together = scale_size == 1 and lanes >= 4 * gl and (target in ("codes", "scales") or unit >= 4)
    encode, decode, put = encoder(fmt, group, sf), decoder(fmt, sf), putter(unit)
    place = placer(
        target=target,
        unit=16 if target in ("codes", "split") else unit,
        fmt=fmt,
        sf=sf,
        row_bytes=row_bytes,
        scale_bytes=scale_bytes,
        together=together,
    )
    first_turned = (width - rope) // CHUNK if rope else chunks * lanes
    each, every, some = list(range(unroll)), list(range(chunks)), list(range(4))
    turned = [j for j in every if (j + 1) * lanes > first_turned]

    # Where a thread's rows are heads of one token, they lie side by side and share the angles.
    one_token = heads > 1 and heads % unroll == 0
    angle_sets = [0] if one_token else each

    n = T.dynamic("n")
    xn, xh, yn, yh = T.dynamic("xn, xh, yn, yh")
    table_rows, units, entries, unit_stride, entry_stride = T.dynamic(
        "table, units, entries, unit_stride, entry_stride"
    )
    absent = T.int32
    x_type = T.StridedTensor((n, heads, width), (xn, xh, 1), "bfloat16")
    y_type = T.StridedTensor((n, heads, width), (yn, yh, 1), "bfloat16") if out else absent
    residual_type = T.Tensor((n, heads, width), "bfloat16") if residual else absent
    weight_type = T.Tensor((width,), norm) if norm else absent
    table_type = T.Tensor((table_rows, max(rope, 1)), "float32") if rope else absent
    positions_type = T.Tensor((n,), positions) if rope else absent
    copy_type = T.Tensor((n, heads, width), "bfloat16") if copy else absent
    exact_type = T.Tensor((n, heads, width), "bfloat16") if exact else absent
    codes_type = T.Tensor((n, heads, row_bytes), "uint8") if target == "codes" else absent
    scales_type = T.Tensor((n, heads, scale_bytes), "uint8") if target in ("codes", "scales") else absent
    slots_type = T.Tensor((n,), "int32") if target in ("cache", "split") else absent
    if target == "cache":
        cache_type = T.StridedTensor((units, entries, row_bytes + scale_bytes), (unit_stride, entry_stride, 1), "uint8")
    elif target == "split":
        cache_type = T.StridedTensor((units, 1, entries), (unit_stride, entry_stride, 1), "uint8")
    else:
        cache_type = absent

    @T.macro
    def put_rows(w, buffer, row, lane, is_row):
        for u in each:
            if is_row[u] != 0:
                for j in every:
                    i = u * held + 4 * j
                    T.stg128(buffer[row[u] // heads, row[u] % heads, (j * lanes + lane) * CHUNK], w[i : i + 4])

    @T.macro
    def add_residual(w, residual_, row, lane, is_row):
        added = T.alloc_local((4,), "uint32")
        for u in each:
            token, head = row[u] // heads, row[u] % heads
            for j in every:
                i, at = u * held + 4 * j, (j * lanes + lane) * CHUNK
                added[0:4] = T.ldg128(residual_[token, head, at])
                for c in some:
                    w[i + c] = nf.add2(w[i + c], added[c])
                if is_row[u] != 0:
                    T.stg128(residual_[token, head, at], w[i : i + 4])

    @T.macro
    def load_factor(factor, f, weight, at, out_scale):
        """Eight weights from ``at``, times ``out_scale``."""
        if norm == "float32":
            for c in T.vectorized(4):
                factor[f + c] = weight[at + c]
            for c in T.vectorized(4):
                factor[f + 4 + c] = weight[at + 4 + c]
        else:
            pairs = T.alloc_local((4,), "uint32")
            pairs[0:4] = T.ldg128(weight[at])
            for c in some:
                factor[f + 2 * c] = nf.lo(pairs[c])
                factor[f + 2 * c + 1] = nf.hi(pairs[c])
        if scaled:
            for c in list(range(CHUNK)):
                factor[f + c] = factor[f + c] * out_scale

    @T.macro
    def sum_squares(w, total, t):
        """``total[u]``: the sum of the squares of row u, in every one of its threads."""
        odd = T.alloc_local((1,), "float32")
        for u in each:
            total[u] = T.float32(0)
            odd[0] = T.float32(0)
            for i in list(range(held)):
                total[u] = nf.square_lo(w[u * held + i], total[u])
                odd[0] = nf.square_hi(w[u * held + i], odd[0])
            total[u] = total[u] + odd[0]
            for d in [d for d in (16, 8, 4, 2, 1) if d < lanes]:
                total[u] = total[u] + T.shfl_xor(total[u], d)
        if warps > 1:
            partial = T.alloc_shared((unroll, BLOCK // WARP), "float32")
            for u in each:
                if t % WARP == 0:
                    partial[u, t // WARP] = total[u]
            T.sync_threads()
            for u in each:
                total[u] = partial[u, t // lanes * warps]
                for i in list(range(1, warps)):
                    total[u] = total[u] + partial[u, t // lanes * warps + i]

    @T.macro
    def normalise(w, weight, copied, row, lane, t, is_row, eps, out_scale):
        rstd = T.alloc_local((unroll,), "float32")
        factor = T.alloc_local((CHUNK * (chunks if early else 1),), "float32")
        if early:  # on the way while the sum is made
            for j in every:
                load_factor(factor, j * CHUNK, weight, (j * lanes + lane) * CHUNK, out_scale)
        sum_squares(w, rstd, t)
        for u in each:
            rstd[u] = nf.inverse_rms(rstd[u], width, eps)
        for j in every:
            f = j * CHUNK if early else 0
            if not early:
                load_factor(factor, 0, weight, (j * lanes + lane) * CHUNK, out_scale)
            for u in each:
                for c in some:
                    i = u * held + 4 * j + c
                    w[i] = nf.normed(w[i], rstd[u], factor[f + 2 * c], factor[f + 2 * c + 1])
        if copy:
            put_rows(w, copied, row, lane, is_row)

    @T.macro
    def load_angles(angle, table, where, lane):
        for u in angle_sets:
            for k in list(range(len(turned))):
                chunk = turned[k] * lanes + lane - first_turned
                a = (u * len(turned) + k) * 8
                if chunk >= 0:
                    for c in T.vectorized(4):
                        angle[a + c] = table[where[u], chunk * 4 + c]
                    for c in T.vectorized(4):
                        angle[a + 4 + c] = table[where[u], rope // 2 + chunk * 4 + c]

    @T.macro
    def rotate(w, angle, lane):
        for u in each:
            for k in list(range(len(turned))):
                if turned[k] * lanes + lane - first_turned >= 0:
                    for c in some:
                        i = u * held + 4 * turned[k] + c
                        a = ((0 if one_token else u) * len(turned) + k) * 8 + c
                        w[i] = nf.turned(w[i], angle[a], -angle[a + 4] if conjugate else angle[a + 4])

    @T.macro
    def quantise(w, row, lane, is_row, exact_, codes, scales, cache, place_of, page):
        byte = T.alloc_local((1,), "uint32")
        scale = T.alloc_local((1,), "float32")
        code = T.alloc_local((2,), "uint32")
        v = T.alloc_local((4,), "uint32")
        leads = lane % (4 * gl) == 0 if together else lane % gl == 0
        for u in each:
            for j in every:
                encode(w, u * held + 4 * j, code, byte, scale)
                if together:
                    byte[0] = byte[0] << T.cast(8 * ((lane // gl) % 4), "uint32")
                    byte[0] = byte[0] | T.shfl_xor(byte[0], gl)
                    byte[0] = byte[0] | T.shfl_xor(byte[0], 2 * gl)
                at, first = (j * lanes + lane) * 4 * code_words, (j * lanes + lane) // gl
                token, head = row[u] // heads, row[u] % heads
                if is_row[u] != 0:
                    if exact:
                        decode(v, code, 0, scale[0])
                        T.stg128(exact_[token, head, (j * lanes + lane) * CHUNK], v[0:4])
                    if target in ("codes", "scales"):
                        place(codes, scales, token, head, page, at, first, leads, code, byte[0])
                    elif place_of[2 * u] >= 0:
                        place(cache, cache, place_of[2 * u], place_of[2 * u + 1], page, at, first, leads, code, byte[0])

    @T.macro
    def put_raw(w, lane, is_row, cache, place_of):
        for u in each:
            if is_row[u] != 0 and place_of[2 * u] >= 0:
                for j in every:
                    at = (j * lanes + lane) * 16
                    put(cache, place_of[2 * u], place_of[2 * u + 1], at, w, u * held + 4 * j, 4)

    @T.prim_func
    def rows(
        x: x_type,
        y: y_type,
        residual_: residual_type,
        weight: weight_type,
        table: table_type,
        position: positions_type,
        copied: copy_type,
        exact_: exact_type,
        codes: codes_type,
        scales: scales_type,
        cache: cache_type,
        slots: slots_type,
        page: T.int32,
        eps: T.float32,
        out_scale: T.float32,
    ):
        with T.Kernel(T.ceildiv(n * heads, per_block), threads=BLOCK, prelude=nf.NUMBERS) as block:
            if resident > 1:
                T.annotate_min_blocks_per_sm(resident)
            t = T.get_thread_binding()
            lane = t % lanes
            row = T.alloc_local((unroll,), "int32")
            is_row = T.alloc_local((unroll,), "int32")
            w = T.alloc_local((unroll * held,), "uint32")
            slot = T.alloc_local((unroll,), "int32")
            place_of = T.alloc_local((unroll * 2,), "int32")  # unit, or -1 to skip, and entry
            where = T.alloc_local((unroll,), "int32")
            angle = T.alloc_local((len(angle_sets) * 8 * max(1, len(turned)),), "float32")
            if chained:
                T.pdl_sync()
                T.pdl_trigger()
            for u in each:
                # Threads past the last row work on it once more and store nothing: they may be needed in a shuffle.
                if one_token:
                    row[u] = (block * groups + t // lanes) * unroll + u
                else:
                    row[u] = block * per_block + u * groups + t // lanes
                is_row[u] = T.if_then_else(row[u] < n * heads, 1, 0)
                row[u] = T.min(row[u], n * heads - 1)
                if rope and u in angle_sets:
                    where[u] = T.cast(position[row[u] // heads], "int32")
                if target in ("cache", "split"):
                    slot[u] = slots[row[u] // heads]
            for u in each:
                for j in every:
                    i = u * held + 4 * j
                    w[i : i + 4] = T.ldg128(x[row[u] // heads, row[u] % heads, (j * lanes + lane) * CHUNK])
            if rope:
                load_angles(angle, table, where, lane)
            if residual:
                add_residual(w, residual_, row, lane, is_row)
            if norm != "":
                normalise(w, weight, copied, row, lane, t, is_row, eps, out_scale)
            if rope:
                rotate(w, angle, lane)
            if out:
                put_rows(w, y, row, lane, is_row)
            if target in ("cache", "split"):
                # Not before here: a division that waits for its slot would hold back the loads of the rows.
                for u in each:
                    place_of[2 * u] = T.if_then_else(slot[u] >= 0, T.truncdiv(slot[u], page), -1)
                    place_of[2 * u + 1] = slot[u] - place_of[2 * u] * page
            if fmt == "raw":
                put_raw(w, lane, is_row, cache, place_of)
            elif fmt != "":
                quantise(w, row, lane, is_row, exact_, codes, scales, cache, place_of, page)

    return rows
