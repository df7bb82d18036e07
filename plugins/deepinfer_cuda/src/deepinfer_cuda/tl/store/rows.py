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

TOP = {"e4m3": 448.0, "e2m1": 6.0}
FLOOR = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}
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
        {"width": 512, "heads": 10, "exact": True, **Q8, "target": "scales", "unroll": 2},
        {"width": 128, "heads": 32, "rope": 64, **Q4, "target": "codes", "unroll": 2},
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
    first_turned = (width - rope) // CHUNK if rope else chunks * lanes
    each, every, some = list(range(unroll)), list(range(chunks)), list(range(4))
    turned = [j for j in every if (j + 1) * lanes > first_turned]

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
        cache_type = T.StridedTensor((units, entries), (unit_stride, 1), "uint8")
    else:
        cache_type = absent

    @T.macro
    def put(buffer, head, tail, at, code, index, size):
        """``size`` words of ``code`` from ``index`` to byte ``at``, in pieces that the address allows."""
        if size == 4 and unit >= 16:
            T.stg128(buffer[head, tail, at], code[index : index + 4])
        elif size >= 2 and unit >= 8:
            for i in list(range(0, size, 2)):
                T.stg64(buffer[head, tail, at + 4 * i], code[index + i : index + i + 2])
        elif unit >= 4:
            for i in list(range(size)):
                T.stg32(buffer[head, tail, at + 4 * i], code[index + i])
        elif unit == 2:
            for i in list(range(2 * size)):
                piece = code[index + i // 2] >> T.uint32(16 * (i % 2))
                T.evaluate(nf.store16(T.address_of(buffer[head, tail, at + 2 * i]), piece))
        else:
            for i in list(range(4 * size)):
                buffer[head, tail, at + i] = T.cast(code[index + i // 4] >> T.uint32(8 * (i % 4)), "uint8")

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
    def load_factor(factor, weight, at, out_scale):
        """Eight weights from ``at``, times ``out_scale``."""
        if norm == "float32":
            for c in T.vectorized(4):
                factor[c] = weight[at + c]
            for c in T.vectorized(4):
                factor[4 + c] = weight[at + 4 + c]
        else:
            pairs = T.alloc_local((4,), "uint32")
            pairs[0:4] = T.ldg128(weight[at])
            for c in some:
                factor[2 * c] = nf.lo(pairs[c])
                factor[2 * c + 1] = nf.hi(pairs[c])
        if scaled:
            for c in list(range(CHUNK)):
                factor[c] = factor[c] * out_scale

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
        factor = T.alloc_local((CHUNK,), "float32")
        sum_squares(w, rstd, t)
        for u in each:
            rstd[u] = nf.inverse_rms(rstd[u], width, eps)
        for j in every:
            load_factor(factor, weight, (j * lanes + lane) * CHUNK, out_scale)
            for u in each:
                for c in some:
                    i = u * held + 4 * j + c
                    w[i] = nf.normed(w[i], rstd[u], factor[2 * c], factor[2 * c + 1])
        if copy:
            put_rows(w, copied, row, lane, is_row)

    @T.macro
    def load_angles(angle, table, where, lane):
        for u in each:
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
                        i, a = u * held + 4 * turned[k] + c, (u * len(turned) + k) * 8 + c
                        w[i] = nf.turned(w[i], angle[a], -angle[a + 4] if conjugate else angle[a + 4])

    @T.macro
    def encode_over_power(w, at, amax, code, byte, scale):
        """Codes under a power of two: pairs are multiplied exactly."""
        v = T.alloc_local((4,), "uint32")
        byte[0] = nf.ue8m0_of(fmt, amax)
        for c in some:
            v[c] = nf.mul2(w[at + c], nf.ue8m0_inverse2(byte[0]))
        if fmt == "e4m3":
            code[0] = nf.e4m3x4_of_pairs(v[0], v[1])
            code[1] = nf.e4m3x4_of_pairs(v[2], v[3])
        else:
            code[0] = nf.e2m1x8_of_pairs(v[0], v[1], v[2], v[3])
        scale[0] = nf.ue8m0(byte[0])

    @T.macro
    def encode_over_number(w, at, amax, code, byte, scale):
        """Codes under a scale that is no power of two: in fp32, times a reciprocal."""
        f = T.alloc_local((CHUNK,), "float32")
        inverse = T.alloc_local((1,), "float32")
        if sf == "e4m3":
            byte[0] = nf.e4m3_scale_of_e2m1(amax)
            scale[0] = nf.e4m3(byte[0])
            inverse[0] = nf.reciprocal(scale[0])
        else:
            floored = T.max(amax, T.float32(FLOOR[fmt]))
            scale[0] = T.ieee_fdiv(floored, T.float32(TOP[fmt]))
            inverse[0] = T.ieee_fdiv(T.float32(TOP[fmt]), floored)
            byte[0] = T.reinterpret(scale[0], "uint32")
        for c in some:
            f[2 * c] = nf.lo(w[at + c]) * inverse[0]
            f[2 * c + 1] = nf.hi(w[at + c]) * inverse[0]
        if fmt == "e4m3":
            code[0] = nf.e4m3x4(f[0], f[1], f[2], f[3])
            code[1] = nf.e4m3x4(f[4], f[5], f[6], f[7])
        else:
            code[0] = nf.e2m1x8(f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7])

    @T.macro
    def put_exact(buffer, token, head, at, code, scale):
        """What eight codes stand for."""
        v = T.alloc_local((4,), "uint32")
        for c in some:
            v[c] = nf.e4m3_pair(code[c // 2], c % 2) if fmt == "e4m3" else nf.e2m1_pair(code[0], c)
            if sf == "f32":
                v[c] = nf.pack(nf.lo(v[c]) * scale[0], nf.hi(v[c]) * scale[0])
            else:
                v[c] = nf.mul2(v[c], nf.pack(scale[0], scale[0]))
        T.stg128(buffer[token, head, at], v[0:4])

    @T.macro
    def put_plain(codes, scales, token, head, at, first, leads, code, byte):
        """Codes and scales to tensors of their own."""
        if target == "codes" and fmt == "e4m3":
            T.stg64(codes[token, head, at], code[0:2])
        elif target == "codes":
            T.stg32(codes[token, head, at], code[0])
        if leads:
            if together:
                T.stg32(scales[token, head, first], byte)
            elif sf == "f32":
                T.stg32(scales[token, head, first * 4], byte)
            else:
                scales[token, head, first] = T.cast(byte, "uint8")

    @T.macro
    def put_entry(cache, unit_id, entry, at, first, leads, code, byte):
        """Codes and scales to an entry, the scales behind its codes."""
        put(cache, unit_id, entry, at, code, 0, code_words)
        if leads:
            if together:
                T.stg32(cache[unit_id, entry, row_bytes + first], byte)
            elif sf == "f32":
                T.stg32(cache[unit_id, entry, row_bytes + first * 4], byte)
            else:
                cache[unit_id, entry, row_bytes + first] = T.cast(byte, "uint8")

    @T.macro
    def put_split(cache, unit_id, entry, page, at, first, leads, code, byte):
        """Codes and scales to a page, all scales behind all codes."""
        behind = page * row_bytes + entry * scale_bytes
        if fmt == "e4m3":
            T.stg64(cache[unit_id, entry * row_bytes + at], code[0:2])
        else:
            T.stg32(cache[unit_id, entry * row_bytes + at], code[0])
        if leads:
            if together:
                T.stg32(cache[unit_id, behind + first], byte)
            elif sf == "f32":
                T.stg32(cache[unit_id, behind + first * 4], byte)
            else:
                cache[unit_id, behind + first] = T.cast(byte, "uint8")

    @T.macro
    def group_amax(w, at, amax, peak):
        peak[0] = nf.max2(nf.max2(nf.abs2(w[at]), nf.abs2(w[at + 1])), nf.max2(nf.abs2(w[at + 2]), nf.abs2(w[at + 3])))
        for d in [d for d in (16, 8, 4, 2, 1) if d < gl]:
            peak[0] = nf.max2(peak[0], T.shfl_xor(peak[0], d))
        amax[0] = nf.top(peak[0])

    @T.macro
    def quantise(w, row, lane, is_row, exact_, codes, scales, cache, place, page):
        peak = T.alloc_local((1,), "uint32")
        amax = T.alloc_local((1,), "float32")
        byte = T.alloc_local((1,), "uint32")
        scale = T.alloc_local((1,), "float32")
        code = T.alloc_local((2,), "uint32")
        leads = lane % (4 * gl) == 0 if together else lane % gl == 0
        for u in each:
            for j in every:
                group_amax(w, u * held + 4 * j, amax, peak)
                if sf == "ue8m0":
                    encode_over_power(w, u * held + 4 * j, amax[0], code, byte, scale)
                else:
                    encode_over_number(w, u * held + 4 * j, amax[0], code, byte, scale)
                if together:
                    byte[0] = byte[0] << T.cast(8 * ((lane // gl) % 4), "uint32")
                    byte[0] = byte[0] | T.shfl_xor(byte[0], gl)
                    byte[0] = byte[0] | T.shfl_xor(byte[0], 2 * gl)
                at, first = (j * lanes + lane) * 4 * code_words, (j * lanes + lane) // gl
                if is_row[u] != 0:
                    if exact:
                        put_exact(exact_, row[u] // heads, row[u] % heads, (j * lanes + lane) * CHUNK, code, scale)
                    if target in ("codes", "scales"):
                        put_plain(codes, scales, row[u] // heads, row[u] % heads, at, first, leads, code, byte[0])
                    elif place[2 * u] >= 0:
                        if target == "cache":
                            put_entry(cache, place[2 * u], place[2 * u + 1], at, first, leads, code, byte[0])
                        elif target == "split":
                            put_split(cache, place[2 * u], place[2 * u + 1], page, at, first, leads, code, byte[0])

    @T.macro
    def put_raw(w, lane, is_row, cache, place, page):
        for u in each:
            if is_row[u] != 0 and place[2 * u] >= 0:
                for j in every:
                    put(cache, place[2 * u], place[2 * u + 1], (j * lanes + lane) * 16, w, u * held + 4 * j, 4)

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
            t = T.get_thread_binding()
            lane = t % lanes
            row = T.alloc_local((unroll,), "int32")
            is_row = T.alloc_local((unroll,), "int32")
            w = T.alloc_local((unroll * held,), "uint32")
            slot = T.alloc_local((1,), "int32")
            place = T.alloc_local((unroll * 2,), "int32")  # unit, or -1 to skip, and entry
            where = T.alloc_local((unroll,), "int32")
            angle = T.alloc_local((unroll * 8 * max(1, len(turned)),), "float32")
            for u in each:
                # Threads past the last row work on it once more and store nothing: they may be needed in a shuffle.
                row[u] = block * per_block + u * groups + t // lanes
                is_row[u] = T.if_then_else(row[u] < n * heads, 1, 0)
                row[u] = T.min(row[u], n * heads - 1)
                if rope:
                    where[u] = T.cast(position[row[u] // heads], "int32")
                if target in ("cache", "split"):
                    slot[0] = slots[row[u] // heads]
                    place[2 * u] = T.if_then_else(slot[0] >= 0, T.truncdiv(slot[0], page), -1)
                    place[2 * u + 1] = T.truncmod(slot[0], page)
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
            if fmt == "raw":
                put_raw(w, lane, is_row, cache, place, page)
            elif fmt != "":
                quantise(w, row, lane, is_row, exact_, codes, scales, cache, place, page)

    return rows
