"""Small calls of ops of a step, for what is tested of all of them alike: nothing in them waits for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from deepinfer_core.types import CacheLayer, CacheSpec

Call = Callable[[], Any]
ROWS, WIDTH, HEADS, HEAD = 6, 128, 2, 64


def step_calls(backend: Any, device: torch.device, generator: torch.Generator) -> Mapping[str, Call]:
    """Op id -> a call of it on inputs that are on the device already. What is prepared at load time is prepared."""
    ops = backend.ops

    def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype).to(device)

    def ints(*shape: int, low: int = 0, high: int) -> Tensor:
        return torch.randint(low, high, shape, generator=generator, dtype=torch.int32).to(device)

    x = rand(ROWS, WIDTH)
    quantised = ops["quant.cast_per_token"](x)
    weight = ops["quant.prepare_weight"]("w", rand(WIDTH, WIDTH, dtype=torch.float32))
    router = ops["quant.prepare_weight"]("router", rand(8, WIDTH, dtype=torch.float32))
    gain = torch.ones(WIDTH, device=device)
    query, keys = rand(ROWS, HEADS, HEAD), rand(32, HEAD)
    caches = ops["cache.alloc"]([CacheSpec("window", "swa", [CacheLayer(0, 16, "bf16", HEAD)])], {"swa": 4})
    view = ops["cache.view"](caches, "window", 0)
    slots, chosen = ints(ROWS, high=64), ints(ROWS, 8, low=-1, high=32)
    scores = rand(ROWS, 40, dtype=torch.float32)
    ends = torch.full((ROWS,), 40, dtype=torch.int32, device=device)
    logits = rand(ROWS, 64, dtype=torch.float32)
    segments = torch.tensor([[0, 0, 4, 0], [-1, 0, 2, 4]], dtype=torch.int32, device=device)
    seeds = torch.arange(ROWS, dtype=torch.int64, device=device)
    chances = torch.log_softmax(logits, -1)
    return {
        "quant.cast_per_token": lambda: ops["quant.cast_per_token"](x),
        "quant.dequantize": lambda: ops["quant.dequantize"](quantised),
        "norm.rms": lambda: ops["norm.rms"](x, gain, eps=1e-6),
        "transform.fused": lambda: ops["transform.fused"](x, norm=(gain, 1e-6)),
        "cache.store": lambda: ops["cache.store"](keys[:ROWS], view, slots),
        "cache.load_segments": lambda: ops["cache.load_segments"](view, segments, 6),
        "attn.sparse_prefill": lambda: ops["attn.sparse_prefill"](query, keys, chosen, scale=0.125),
        "index.topk": lambda: ops["index.topk"](scores, 8, end=ends),
        "gemm.dense": lambda: ops["gemm.dense"](quantised, weight),
        "moe.gate": lambda: ops["moe.gate"](x, router, torch.zeros(8, device=device), k=2, scale=1.0),
        "sample.draw": lambda: ops["sample.draw"](chances, seeds, seeds),
    }
