"""Eight values of a row to codes under their group's scale, and back: the macros of each format.

What a thread holds of a group is eight values; the other threads of the group are its neighbours.
"""
# No postponed annotations: TileLang reads them as values.

from typing import Any

import tilelang.language as T

from deepinfer_cuda.tl.parts import numbers as nf
from deepinfer_cuda.tl.parts.row_layout import CHUNK

TOP = {"e4m3": 448.0, "e2m1": 6.0}
FLOOR = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}


def encoder(fmt: str, group: int, sf: str) -> Any:
    """The macro ``encode(w, at, code, byte, scale)``: pairs ``w[at : at + 4]`` to ``code`` (two words of E4M3, one of
    E2M1), the stored scale ``byte[0]`` (bits of fp32 where scales are) and its value ``scale[0]``."""
    threads = max(1, group // CHUNK)  # that share a scale
    some = list(range(4))

    @T.macro
    def group_amax(w, at, amax):
        peak = T.alloc_local((1,), "uint32")
        peak[0] = nf.max2(nf.max2(nf.abs2(w[at]), nf.abs2(w[at + 1])), nf.max2(nf.abs2(w[at + 2]), nf.abs2(w[at + 3])))
        for d in [d for d in (16, 8, 4, 2, 1) if d < threads]:
            peak[0] = nf.max2(peak[0], T.shfl_xor(peak[0], d))
        amax[0] = nf.top(peak[0])

    @T.macro
    def over_power(w, at, code, byte, scale):
        """Codes under a power of two: pairs are multiplied exactly."""
        amax = T.alloc_local((1,), "float32")
        group_amax(w, at, amax)
        v = T.alloc_local((4,), "uint32")
        byte[0] = nf.ue8m0_of(fmt, amax[0])
        if fmt == "e4m3":
            for c in some:
                v[c] = nf.mul2(w[at + c], nf.ue8m0_inverse2(byte[0]))
            code[0] = nf.e4m3x4_of_pairs(v[0], v[1])
            code[1] = nf.e4m3x4_of_pairs(v[2], v[3])
        else:
            code[0] = nf.e2m1x8_of_pairs(w[at], w[at + 1], w[at + 2], w[at + 3], nf.ue8m0_inverse2(byte[0]))
        scale[0] = nf.ue8m0(byte[0])

    @T.macro
    def over_number(w, at, code, byte, scale):
        """Codes under a scale that is no power of two: in fp32, times a reciprocal."""
        amax = T.alloc_local((1,), "float32")
        group_amax(w, at, amax)
        f = T.alloc_local((CHUNK,), "float32")
        inverse = T.alloc_local((1,), "float32")
        if sf == "e4m3":
            byte[0] = nf.e4m3_scale_of_e2m1(amax[0])
            scale[0] = nf.e4m3(byte[0])
            inverse[0] = nf.reciprocal(scale[0])
        else:
            floored = T.max(amax[0], T.float32(FLOOR[fmt]))
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

    return over_power if sf == "ue8m0" else over_number


def decoder(fmt: str, sf: str) -> Any:
    """The macro ``decode(v, code, i, scale)``: eight codes from word ``i`` to pairs ``v[4]``; ``scale`` is fp32."""
    some = list(range(4))

    @T.macro
    def decode(v, code, i, scale):
        for c in some:
            v[c] = nf.e4m3_pair(code[i + c // 2], c % 2) if fmt == "e4m3" else nf.e2m1_pair(code[i], c)
            if sf == "f32":
                v[c] = nf.pack(nf.lo(v[c]) * scale, nf.hi(v[c]) * scale)
            else:
                v[c] = nf.mul2(v[c], nf.pack(scale, scale))

    return decode
