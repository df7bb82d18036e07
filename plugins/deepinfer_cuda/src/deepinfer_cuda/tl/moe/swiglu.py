"""SwiGLU of rows [gate | up], with clamp and routing weight, and its quantised form: values over E4M3 scales."""

from typing import Any

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts.numbers import NUMBERS

THREADS = (96, 128, 64, 32)
"""Threads of a block, the first that fits the vectors of a row: 288 in the released model."""

_TEXT = r"""
// One element of silu(min(g, limit)) * clip(u, +-limit) * weight; NaN passes the limits. Exponential and quotient are
// those of the special function unit, 2^-20 off where g is near the limit: the exact ones took more instructions than
// all the rest, and the result is rounded to 2^-9.
DI_FN float di_swiglu(float g, float u, float limit, float weight) {
  g = g > limit ? limit : g;
  u = u > limit ? limit : (u < -limit ? -limit : u);
  return __fdividef(g, __expf(-g) + 1.0f) * u * weight;
}
// Eight elements: words of gate and up to a word of rounded results each.
DI_FN void di_swiglu8(const uint32_t* g, const uint32_t* u, uint32_t* y, float limit, float weight) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    y[i] = di_pack(di_swiglu(di_lo(g[i]), di_lo(u[i]), limit, weight),
                   di_swiglu(di_hi(g[i]), di_hi(u[i]), limit, weight));
}
// Largest magnitude of eight values; NaN does not count.
DI_FN float di_amax8(const uint32_t* y) {
  return di_top(di_max2(di_max2(di_abs2(y[0]), di_abs2(y[1])), di_max2(di_abs2(y[2]), di_abs2(y[3]))));
}
// Values of the E4M3 codes of eight values under scale `byte`.
DI_FN void di_round8(uint32_t* y, uint32_t byte) {
  const uint32_t down = di_ue8m0_inverse2(byte), up = di_ue8m0_pair(byte);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t scaled = di_mul2(y[i], down);
    y[i] = di_mul2(di_e4m3_pair(di_e4m3x2(di_lo(scaled), di_hi(scaled)), 0), up);
  }
}
"""
SWIGLU = NUMBERS + _TEXT


@kernel(
    cases=[
        {"inner": 2304, "weighted": False, "cast": True},
        {"inner": 2304, "weighted": False, "cast": False},
        {"inner": 64, "weighted": False, "cast": True},
    ]
)
def swiglu_rows(*, inner: int, weighted: bool, cast: bool) -> Any:
    """bf16 ``x [T, 2 inner]`` as words of two -> ``out [T, inner]`` as words, and scale bytes with ``cast``."""
    tokens = T.dynamic("tokens")
    half = inner // 2
    vectors = inner // 8
    threads = next((t for t in THREADS if vectors % t == 0), 128)
    blocks = -(-vectors // threads)

    @T.prim_func
    def swiglu_rows(
        x: T.Tensor((tokens, 2 * half), "uint32"),
        weight: T.Tensor((tokens,), "float32"),
        limit: T.float32,
        out: T.Tensor((tokens, half), "uint32"),
        sf: T.Tensor((tokens, inner // 32), "uint8"),
    ):
        with T.Kernel(tokens, blocks, threads=threads, prelude=SWIGLU) as (token, part):
            tx = T.get_thread_binding()
            at = (part * threads + tx) * 4
            g = T.alloc_local((4,), "uint32")
            u = T.alloc_local((4,), "uint32")
            y = T.alloc_local((4,), "uint32")
            factor = T.alloc_var("float32", init=1.0)
            if weighted:
                factor = weight[token]
            for i in T.unroll(4):
                g[i] = T.uint32(0)
                u[i] = T.uint32(0)
            if at < half:
                for i in T.vectorized(4):
                    g[i] = x[token, at + i]
                for i in T.vectorized(4):
                    u[i] = x[token, half + at + i]
            T.call_extern(
                "handle", "di_swiglu8", T.address_of(g[0]), T.address_of(u[0]), T.address_of(y[0]), limit, factor
            )
            if cast:
                amax = T.alloc_var("float32", init=0.0)
                amax = T.call_pure_extern("float32", "di_amax8", T.address_of(y[0]))
                amax = T.max(amax, T.shfl_xor(amax, 1))
                amax = T.max(amax, T.shfl_xor(amax, 2))
                byte = T.call_pure_extern("uint32", "di_ue8m0_of_e4m3", amax)
                T.call_extern("handle", "di_round8", T.address_of(y[0]), byte)
                if (tx % 4 == 0) & (at < half):
                    sf[token, at // 16] = T.cast(byte, "uint8")
            if at < half:
                for i in T.vectorized(4):
                    out[token, at + i] = y[i]

    return swiglu_rows
