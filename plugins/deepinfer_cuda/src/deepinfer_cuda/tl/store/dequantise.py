"""Codes and scales back to bf16 (``quant.dequantize``)."""
# No postponed annotations: TileLang reads them as values.

import tilelang.language as T

from deepinfer_cuda.jit import kernel
from deepinfer_cuda.tl.parts import numbers as nf
from deepinfer_cuda.tl.parts.row_layout import CHUNK

THREADS = 256


@kernel(
    cases=[
        {"fmt": "e4m3", "group": 32, "sf": "ue8m0", "unroll": 4},
        {"fmt": "e2m1", "group": 32, "sf": "ue8m0", "unroll": 4},
        {"fmt": "e2m1", "group": 16, "sf": "e4m3", "unroll": 4},
    ],
    pass_configs={"tl.disable_safe_memory_legalize": True},
)
def dequantise(*, fmt: str, group: int, sf: str, unroll: int):
    """``chunks`` times eight codes, groups one behind the other; ``unroll`` chunks a thread."""
    words = 2 if fmt == "e4m3" else 1
    per_group = group // CHUNK
    each, some = list(range(unroll)), list(range(4))
    chunks, groups = T.dynamic("chunks, groups")
    scale_type = T.Tensor((groups,), "float32" if sf == "f32" else "uint8")

    @T.prim_func
    def dequantise(
        codes: T.Tensor((chunks, 4 * words), "uint8"), scales: scale_type, out: T.Tensor((chunks, CHUNK), "bfloat16")
    ):
        with T.Kernel(T.ceildiv(chunks, THREADS * unroll), threads=THREADS, prelude=nf.NUMBERS) as block:
            t = T.get_thread_binding()
            code = T.alloc_local((unroll * words,), "uint32")
            scale = T.alloc_local((unroll,), "float32" if sf == "f32" else "uint32")
            factor = T.alloc_local((1,), "uint32")
            v = T.alloc_local((4,), "uint32")
            T.pdl_sync()
            T.pdl_trigger()
            for u in each:
                i = (block * unroll + u) * THREADS + t
                if i < chunks:
                    if words == 2:
                        code[2 * u : 2 * u + 2] = T.ldg64(codes[i, 0])
                    else:
                        code[u] = T.ldg32(codes[i, 0])
                    scale[u] = scales[i // per_group] if sf == "f32" else T.cast(scales[i // per_group], "uint32")
            for u in each:
                i = (block * unroll + u) * THREADS + t
                if i < chunks:
                    if sf == "ue8m0":
                        factor[0] = nf.ue8m0_pair(scale[u])
                    elif sf == "e4m3":
                        factor[0] = nf.pack(nf.e4m3(scale[u]), nf.e4m3(scale[u]))
                    for c in some:
                        if fmt == "e4m3":
                            v[c] = nf.e4m3_pair(code[words * u + c // 2], c % 2)
                        else:
                            v[c] = nf.e2m1_pair(code[u], c)
                        if sf == "f32":
                            v[c] = nf.pack(nf.lo(v[c]) * scale[u], nf.hi(v[c]) * scale[u])
                        else:
                            v[c] = nf.mul2(v[c], factor[0])
                    T.stg128(out[i, 0], v[0:4])

    return dequantise
