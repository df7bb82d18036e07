"""A row has the same bits alone and in a batch: the capability ``batch_invariant`` (``spec/model.md`` 6)."""

import math

import pytest
import torch

from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu.ops import gemm

T, HIDDEN, HEADS, DIM = 37, 256, 8, 64


def same(full: object, alone: object, row: int) -> bool:
    if isinstance(full, tuple):
        return all(same(f, a, row) for f, a in zip(full, alone, strict=True))
    return torch.equal(full[row : row + alone.shape[0]], alone)


def padded(scores: torch.Tensor) -> torch.Tensor:
    """To 128 columns: alone, a row has fewer than beside a longer one."""
    return torch.nn.functional.pad(scores, (0, 128 - scores.shape[1]), value=-math.inf)


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
    column = be.quant.prepare_weight("column", torch.randn(1, HIDDEN))
    heads = be.quant.prepare_weight("h", torch.randn(128, 256), use="heads:2")
    router = be.quant.prepare_weight("g", torch.randn(8, HIDDEN))
    up, down = [fp4(128, HIDDEN) for _ in range(8)], [fp4(HIDDEN, 64) for _ in range(8)]
    w1 = be.quant.prepare_weight("w1", [c for c, _ in up], [s for _, s in up], use="experts")
    w2 = be.quant.prepare_weight("w2", [c for c, _ in down], [s for _, s in down], use="experts")
    mix = be.mhc.prepare(torch.randn(24, 4 * HIDDEN) / 32, torch.ones(3), torch.zeros(24))
    table = be.transform.rope_table(64, 16, theta=10000.0)
    gate_w = be.engram.prepare_gate(torch.randn(4, HIDDEN), torch.ones(4, HIDDEN))
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
        "dense of one column": ((rand(T, HIDDEN),), lambda x: be.gemm.dense(x, column, out_dtype=torch.float32)),
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
            (rand(T, 4, 32), rand(T, 4), torch.randint(1, 41, (T,)).int(), torch.randint(0, 8, (T, 3)).int()),
            lambda q, v, n, t: padded(be.index.logits(q, v, caches.view("index", 0), context_lens=n, block_table=t)),
        ),
        "index spans": (
            (rand(T, 4, 32), rand(T, 4), torch.randint(0, 3, (T,)).int() * 30, torch.randint(90, 101, (T,)).int()),
            lambda q, v, a, b: padded(be.index.logits(q, v, kv[:, :32], span=(a, b))),
        ),
    }  # fmt: skip


NAMES = ["cast", "rms", "dense", "dense wide", "heads", "rotary", "swiglu", "moe", "mhc.pre", "mhc.post", "engram",
         "attention", "index", "index spans"]  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", NAMES)
def test_rows_have_the_same_bits_alone_and_in_a_batch(backend, name, dtype):
    inputs, function = calls(backend, dtype)[name]
    full = function(*inputs)
    for row, count in [(r, 1) for r in range(T)] + [(0, 2), (5, 16), (3, 32)]:
        alone = function(*(x[row : row + count].clone() for x in inputs))
        assert same(full, alone, row), (row, count)


@pytest.mark.parametrize("inner", [64, 512, 768, 769, 1024, 1280, 5120])
@pytest.mark.parametrize("outputs", [8, 24, 64, 65, 256, 1280])
def test_products_of_any_size_give_a_row_the_same_bits_for_any_row_count(inner, outputs):
    matrix, x = torch.randn(inner, outputs), torch.randn(200, inner)
    full = gemm.product(x, matrix)
    for rows in (1, 2, 3, 7, 8, 17, 32, 33, 64, 100, 128, 161, 192):
        assert torch.equal(gemm.product(x[:rows], matrix), full[:rows]), rows
    torch.testing.assert_close(full.double(), x.double() @ matrix.double(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("threads", [2, 4])
@pytest.mark.parametrize(("inner", "outputs"), [(256, 192), (512, 64), (768, 24), (1024, 24), (1024, 64)])
def test_products_on_more_threads_give_a_row_the_same_bits_for_any_row_count(inner, outputs, threads):
    torch.set_num_threads(threads)
    matrix, x = torch.randn(inner, outputs), torch.randn(64, inner)
    full = gemm.product(x, matrix)
    for rows in (1, 2, 3, 5, 7, 8, 17, 33):
        assert torch.equal(gemm.product(x[:rows], matrix), full[:rows]), rows


def test_head_products_with_a_long_inner_dimension_keep_rows_apart(backend):
    w = backend.quant.prepare_weight("wo_a", torch.randn(2 * 96, 1024), use="heads:2")
    a = torch.randn(200, 2, 1024)
    full = backend.gemm.einsum_heads(a, w)
    for rows in (1, 2, 33, 161):
        assert torch.equal(backend.gemm.einsum_heads(a[:rows], w), full[:rows])
    want = torch.einsum("tgk,gkn->tgn", a.double(), w.matrix.double())
    torch.testing.assert_close(full.double(), want, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("heads", [1, 2, 4, 32])
def test_index_scores_have_the_same_bits_in_prefill_and_decode(backend, heads):
    caches = backend.alloc_caches([CacheSpec("index", "index", [CacheLayer(0, 16, "index_fp4", 64)])], {"index": 20})
    view, n = caches.view("index", 0), 150
    slots = torch.arange(16, 16 + n, dtype=torch.int32)
    backend.cache.store(torch.randn(n, 64), view, slots)
    keys = backend.cache.load_segments(view, torch.tensor([[1 + b, 0, 16, 16 * b] for b in range(10)]).int(), 160)
    q, w = torch.randn(n, heads, 64), torch.randn(n, heads)
    visible = torch.arange(1, n + 1, dtype=torch.int32)
    prefill = backend.index.logits(q, w, keys, span=(torch.zeros(n, dtype=torch.int32), visible))
    table = torch.arange(1, 20, dtype=torch.int32).unsqueeze(0)
    for t in (0, 1, 30, 31, 32, 33, 100, n - 1):
        rows = slice(t, t + 1)
        decode = backend.index.logits(q[rows], w[rows], view, context_lens=visible[rows], block_table=table)
        assert torch.equal(decode[0], prefill[t, : t + 1]), t
