"""Configurations other than the shipped one, against the dense oracle (``spec/model.md`` 1.2; random tiny models).

Norm weights and sinks are random here: as ones and zeros they would hide in which order they are applied.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from dense_reference import DenseReference
from torch import Tensor
from v41_models import SHIPPED, make_driver
from v41_tiny import edited, prompt, tiny_path

from deepinfer_v41.primes import engram_primes

IDS = prompt(52, seed=1)
BACKBONE = [0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1]


def engram_rows(order: int) -> dict[str, Any]:
    rows = [sum(row) for row in engram_primes(200, 2, (order - 1) * 2)]
    return {"engram_max_ngram_size": order, "engram_num_embeddings": rows}


WIDE = {
    "hidden_size": 256,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "index_n_heads": 8,
    "index_head_dim": 128,
    "sliding_window": 128,
    "index_topk": 64,
    "candidate_topk_blocks": 16,
}
"""``tiny-k`` of ``spec/model.md`` 1.3: entries as wide as the released ones."""

VARIANTS: dict[str, dict[str, Any]] = {
    "released-formats": {},
    "large-norm-eps": {"rms_norm_eps": 1e-2},
    "no-engram": {"engram_layer_ids": [], "engram_num_embeddings": []},
    "engram-order-2": engram_rows(2),
    "engram-order-6": engram_rows(6),
    "engram-layers-descending": {"engram_layer_ids": [4, 1]},
    "candidates-null": {"candidate_source_layer_id": "null"},
    "candidates-negative": {"candidate_source_layer_id": -1},
    "candidate-blocks-of-3": {"candidate_block_size": 3, "candidate_topk_blocks": 6},
    "candidates-of-ratio-2": {"compress_ratios": [0, 0, *[2] * 10, 0, 0, 0], "candidate_source_layer_id": 4},
    "only-ratio-1": {
        "compress_ratios": [0, 0, *[1] * 10, 0, 0, 0],
        "engram_layer_ids": [1],
        "engram_num_embeddings": [1362],
    },
    "no-draft-head": {"num_nextn_predict_layers": 0, "compress_ratios": BACKBONE, "dspark_target_layer_ids": []},
    "one-stream": {"hc_mult": 1},
    "three-streams": {"hc_mult": 3},
    "one-sinkhorn-round": {"hc_sinkhorn_iters": 1},
    "one-head": {"num_attention_heads": 1, "o_groups": 1, "index_n_heads": 1},
    "one-output-group": {"o_groups": 1},
    "router-temperature": {"gate_temp": 0.5},
    "no-clamp": {"swiglu_limit": 0.0},
    "tight-clamp": {"swiglu_limit": 0.1},
    "window-of-one": {"sliding_window": 1},
    "window-beyond-the-prompt": {"sliding_window": 200},
    "all-experts": {"num_experts_per_tok": 8},
    "top-1": {"index_topk": 1, "candidate_topk_blocks": 1},
    "unquantised": {"quantization_config": "null"},
}


@functools.cache
def varied(name: str) -> Path:
    """A checkpoint of the variant with random norm weights and sinks."""
    draw = torch.Generator().manual_seed(5)

    def edit(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        out = {}
        for key, w in sorted(tensors.items()):
            if "norm" in key or key.endswith(("q_weight", "k_weight")):
                out[key] = (1 + 0.3 * torch.randn(w.shape, generator=draw)).to(w.dtype)
            elif key.endswith("attn_sink"):
                out[key] = torch.randn(w.shape, generator=draw)
        return out

    return edited(tiny_path(**VARIANTS[name]), edit)


GATE = {
    "large-norm-eps",
    "no-engram",
    "candidate-blocks-of-3",
    "only-ratio-1",
    "no-draft-head",
    "three-streams",
    "one-head",
    "router-temperature",
    "tight-clamp",
    "window-of-one",
    "top-1",
}
"""The variants of every run; the others run nightly."""


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in GATE else pytest.mark.slow) for n in VARIANTS])
def test_variant_matches_the_dense_oracle_in_prefill_and_decode(name):
    path = varied(name)
    want = DenseReference(path, caches=False).run(IDS).logits
    got = make_driver(path, "plain").all_logits(IDS, chunk=29, split=45)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
    assert float(want.std()) > 0.5


@pytest.mark.parametrize("name", ["three-streams", "one-head", "no-draft-head", "candidate-blocks-of-3"])
def test_released_rows_of_a_variant_do_not_depend_on_the_steps(name):
    driver = make_driver(varied(name), "released")
    assert torch.equal(driver.all_logits(IDS, chunk=7, split=44), driver.all_logits(IDS))


@pytest.mark.parametrize("split", [None, 60])
def test_fp8_main_entries_give_the_rows_of_the_oracle(split):
    """``use_fp4_sparse_kv`` false: main KV in the format of the window, 32 values to a scale."""
    path, ids = tiny_path(use_fp4_sparse_kv=False), prompt(90, seed=2)
    driver = make_driver(path, "kvq")
    assert driver.caches.view("main", 6).layout.name == "v41"
    rows, oracle = driver.all_logits(ids, split=split), DenseReference(path)
    distance = (rows - oracle.run(ids).logits).abs().amax(-1)
    # A code at a midpoint may flip, which moves a row a little; the FP4 format is far away.
    assert float(distance[:30].max()) < 1e-3
    assert float(distance.mean()) < 1e-2
    oracle.c["use_fp4_sparse_kv"] = True
    assert float((rows - oracle.run(ids).logits).abs().amax(-1).mean()) > 10 * float(distance.mean())


@pytest.mark.slow
def test_entries_of_the_released_width_match_the_dense_oracle():
    path, ids = tiny_path(**WIDE), prompt(200, seed=2)
    want = DenseReference(path, caches=False).run(ids).logits
    torch.testing.assert_close(
        make_driver(path, "plain").all_logits(ids, chunk=150, split=190), want, atol=1e-4, rtol=0
    )
    driver, ids = make_driver(path, "released"), ids[:150]
    assert torch.equal(driver.all_logits(ids, chunk=61, split=140, q=3), driver.all_logits(ids))


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["plain", "released"])
def test_shipped_model_is_right_up_to_its_last_position(variant):
    """2,048 positions over 16 blocks; the golden prompts end at 600."""
    draw = torch.randint(3, 1500, (2047,), generator=torch.Generator().manual_seed(8))
    ids, driver = [0, *draw.tolist()], make_driver(SHIPPED, variant)
    got = driver.all_logits(ids, chunk=700, split=2030)
    assert torch.equal(got, driver.all_logits(ids))
    if variant == "plain":
        oracle = DenseReference(SHIPPED, caches=False, token_map=driver.model._tables.token_map.tolist())
        distance = (got - oracle.run(ids).logits).abs().amax(-1)
        assert float(distance.median()) < 1e-4
        assert float((distance > 1e-3).float().mean()) < 0.01
