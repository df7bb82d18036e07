"""A row's bits are the same alone and in a batch, at the sizes of the shipped checkpoint (``spec/model.md`` 6).

Not claimed as the capability ``batch_invariant``: that holds for these sizes, measured, not for every inner dimension.
"""

import pytest
import torch

from deepinfer_core.types import CacheLayer, CacheSpec

T, HIDDEN, HEADS, DIM = 37, 256, 8, 64


def same(full: object, alone: object, row: int) -> bool:
    if isinstance(full, tuple):
        return all(same(f, a, row) for f, a in zip(full, alone, strict=True))
    return torch.equal(full[row : row + alone.shape[0]], alone)


def calls(be, dtype):
    """(name, inputs with a row dimension, function of them)."""

    def rand(*shape: int) -> torch.Tensor:
        return torch.randn(*shape).to(dtype)

    def fp4(out: int, inp: int):
        return torch.randint(0, 256, (out, inp // 2), dtype=torch.uint8), torch.full(
            (out, inp // 32), 121, dtype=torch.uint8
        )

    w = be.quant.prepare_weight("w", torch.randn(192, HIDDEN))
    wide = be.quant.prepare_weight("wide", torch.randn(512, 128))
    heads = be.quant.prepare_weight("h", torch.randn(128, 256), use="heads:2")
    router = be.quant.prepare_weight("g", torch.randn(8, HIDDEN))
    up, down = [fp4(128, HIDDEN) for _ in range(8)], [fp4(HIDDEN, 64) for _ in range(8)]
    w1 = be.quant.prepare_weight("w1", [c for c, _ in up], [s for _, s in up], use="experts")
    w2 = be.quant.prepare_weight("w2", [c for c, _ in down], [s for _, s in down], use="experts")
    mix = be.mhc.prepare(torch.randn(24, 4 * HIDDEN) / 32, torch.ones(3), torch.zeros(24))
    table = be.transform.rope_table(64, 16, theta=10000.0)
    gate_w = torch.randn(4, HIDDEN)
    kv = rand(100, DIM)
    caches = be.alloc_caches([CacheSpec("index", "index", [CacheLayer(0, 16, "index_fp4", 32)])], {"index": 8})
    be.cache.store(torch.randn(128, 32), caches.view("index", 0), torch.arange(128, dtype=torch.int32))

    def moe(x):
        idx, weight = be.moe.gate(x, router, torch.zeros(8), k=2, scale=1.5)
        sent = be.moe.dispatch(be.quant.cast_per_token(x), idx, weight)
        return weight, be.moe.combine(be.moe.experts(sent, w1, w2, clamp=10.0), sent.handle, bias=x)

    return {
        "cast": ((rand(T, HIDDEN),), lambda x: (be.quant.cast_per_token(x).values, be.quant.cast_per_token(x).data)),
        "rms": ((rand(T, HIDDEN),), lambda x: be.norm.rms(x, torch.ones(HIDDEN), eps=1e-20)[0]),
        "dense": ((rand(T, HIDDEN),), lambda x: be.gemm.dense(be.quant.cast_per_token(x), w)),
        "dense wide": ((rand(T, 128),), lambda x: be.gemm.dense(x, wide)),
        "heads": ((rand(T, 2, 256),), lambda x: be.gemm.einsum_heads(x, heads)),
        "rotary": (
            (rand(T, HEADS, DIM), torch.arange(T)),
            lambda x, p: be.transform.rotary(x, (table, p, False)),
        ),
        "swiglu": ((rand(T, 128) * 4,), lambda x: be.moe.swiglu(x, clamp=10.0)),
        "moe": ((rand(T, HIDDEN),), moe),
        "mhc.pre": ((rand(T, 4, HIDDEN), torch.rand(T, 4)), lambda x, a: be.mhc.pre(x, a, mix)),
        "mhc.post": (
            (rand(T, HIDDEN), rand(T, 4, HIDDEN), torch.rand(T, 4), torch.rand(T, 4, 4)),
            be.mhc.post,
        ),
        "engram": ((rand(T, 4, HIDDEN), rand(T, 5 * HIDDEN)), lambda x, k: be.engram.gate(x, k, gate_w)),
        "attention": (
            (rand(T, HEADS, DIM), torch.randint(-1, 100, (T, 48), dtype=torch.int32)),
            lambda q, i: be.attn.sparse_prefill(q, kv, i, scale=0.125, sink=torch.zeros(HEADS)),
        ),
        "index": (
            (rand(T, 4, 32), rand(T, 4), torch.full((T,), 40, dtype=torch.int32), torch.randint(0, 8, (T, 3)).int()),
            lambda q, v, n, t: be.index.logits(q, v, caches.view("index", 0), context_lens=n, block_table=t),
        ),
    }  # fmt: skip


NAMES = ["cast", "rms", "dense", "dense wide", "heads", "rotary", "swiglu", "moe", "mhc.pre", "mhc.post", "engram",
         "attention", "index"]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_same_bits_alone_and_in_a_batch(backend, name, dtype):
    inputs, function = calls(backend, dtype)[name]
    full = function(*inputs)
    for row, count in [(r, 1) for r in range(T)] + [(0, 2), (5, 16), (3, 32)]:
        alone = function(*(x[row : row + count].clone() for x in inputs))
        assert same(full, alone, row), (row, count)
