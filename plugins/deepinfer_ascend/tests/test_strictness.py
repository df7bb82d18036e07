"""What a device would refuse fails under emulation: a wrong dtype, stride, format or scale word, one at a time."""

import pytest
import torch
from emulated_backend import K, N, T, emulated, fp8_weight, rows

from deepinfer_ascend.emulation import deep_gemm, deep_select, flash_mla, tile_kernels
from deepinfer_ascend.fractal import to_fractals
from deepinfer_core.errors import ShapeContractError

pytestmark = pytest.mark.emulated
RECIPE = (1, 1, 32)


@pytest.fixture(scope="module")
def ascend():
    made = emulated()
    yield made
    made.close()


@pytest.fixture
def product(ascend):
    """Arguments of an FP8 product that is taken."""
    q = ascend.quant.cast_per_token(rows(T, K))
    w = ascend.quant.prepare_weight("w", *fp8_weight())
    return {
        "a": (q.data.view(torch.float8_e4m3fn), q.words),
        "b": (w.stored, w.words),
        "d": torch.empty(T, N, dtype=torch.bfloat16),
        "recipe": RECIPE,
    }


def test_a_product_that_fits_is_taken(product):
    deep_gemm.fp8_fp4_gemm_nt(**product)


WRONG = {
    "activations of bf16": lambda p: {"a": (rows(T, K), p["a"][1])},
    "activations as bytes": lambda p: {"a": (p["a"][0].view(torch.uint8), p["a"][1])},
    "activations column-major": lambda p: {"a": (p["a"][0].t().contiguous().t(), p["a"][1])},
    "row-major words": lambda p: {"a": (p["a"][0], p["a"][1].contiguous())},
    "int32 words": lambda p: {"a": (p["a"][0], p["a"][1].int())},
    "scales of fp32": lambda p: {"a": (p["a"][0], torch.ones(T, K // 32))},
    "words of other rows": lambda p: {"a": (p["a"][0], p["a"][1][:-1])},
    "a weight in ND": lambda p: {"b": (fp8_weight()[0], p["b"][1])},
    "a weight of bf16": lambda p: {"b": (to_fractals(rows(N, K)), p["b"][1])},
    "row-major words of the weight": lambda p: {"b": (p["b"][0], p["b"][1].contiguous())},
    "block scales of the checkpoint": lambda p: {"b": (p["b"][0], fp8_weight()[1])},
    "a result of fp16": lambda p: {"d": p["d"].half()},
    "a result of another width": lambda p: {"d": torch.empty(T, N + 1, dtype=torch.bfloat16)},
    "a strided result": lambda p: {"d": torch.empty(N, T, dtype=torch.bfloat16).t()},
    "another recipe": lambda p: {"recipe": (1, 128, 128)},
    "an accumulator beside the result": lambda p: {"c": torch.zeros(T, N)},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_product_refuses(product, name):
    with pytest.raises(ShapeContractError, match="fp8_fp4_gemm_nt"):
        deep_gemm.fp8_fp4_gemm_nt(**product | WRONG[name](product))


def test_a_wrong_scale_word_changes_the_result(ascend, product):
    """The words are read: one scale of one group, off by one power of two."""
    deep_gemm.fp8_fp4_gemm_nt(**product)
    right = product["d"].clone()
    product["a"][1][1, 2] += 1
    deep_gemm.fp8_fp4_gemm_nt(**product)
    assert torch.equal(product["d"][[0, 2, 3, 4]], right[[0, 2, 3, 4]])
    assert not torch.equal(product["d"][1], right[1])


def test_segments_that_do_not_begin_at_128_rows_are_refused(ascend):
    q = ascend.quant.cast_per_token(rows(256, K))
    w = ascend.quant.prepare_weight("w", [fp8_weight()[0]] * 2, [fp8_weight()[1]] * 2, use="experts")
    a, d = (q.data.view(torch.float8_e4m3fn), q.words), torch.empty(256, N, dtype=torch.bfloat16)
    take = deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous
    take(a, (w.stored, w.words), d, torch.tensor([3, 200], dtype=torch.int32), recipe=RECIPE, use_psum_layout=True)
    assert d[3:128].isnan().all()  # what is undefined is not zero
    assert not d[128:200].isnan().any()
    with pytest.raises(ShapeContractError, match="multiples of 128"):
        take(a, (w.stored, w.words), d, torch.tensor([3, 9], dtype=torch.int32), recipe=RECIPE, use_psum_layout=True)


WORDS = {"use_tma_aligned_col_major_sf": True, "round_sf": True, "use_packed_ue8m0": True}
CALLS = {
    "options by the places of another release": lambda: tile_kernels.per_token_cast(
        rows(2, 64), "e4m3", 32, *[True] * 3
    ),
    "streams of fp32": lambda: tile_kernels.expand_to_mhc_fwd(torch.zeros(2, 128), torch.zeros(2, 4, 128)),
    "streams of 64 values": lambda: tile_kernels.expand_to_mhc_fwd(rows(2, 64), rows(2, 4, 64)),
    "mixes without their last dimension": lambda: tile_kernels.mhc_post_fwd(
        rows(1, 2, 128), rows(1, 2, 4, 128), torch.zeros(1, 2, 4), torch.zeros(1, 2, 4, 4)
    ),
    "mixes of bf16": lambda: tile_kernels.mhc_pre_apply_mix_fwd(rows(2, 4, 128), rows(2, 4), rows(2, 128)),
    "a gate that keeps sums for a backward pass": lambda: tile_kernels.engram_gate_fwd(
        rows(2, 4, 128), rows(2, 5, 128), torch.zeros(4, 128), 1e-20, 1e-6
    ),
    "a cast of fp32": lambda: tile_kernels.per_token_cast(torch.zeros(2, 64), "e4m3", 32, **WORDS),
    "a cast of half a word": lambda: tile_kernels.per_token_cast(rows(2, 96), "e4m3", 32, **WORDS),
    "a cast with fp32 scales": lambda: tile_kernels.per_token_cast(rows(2, 64), "e4m3", 32),
    "attention of 8 heads": lambda: attend(rows(2, 8, 512)),
    "attention of 64 values": lambda: attend(rows(2, 64, 64)),
    "attention with 33 keys": lambda: attend(rows(2, 64, 512), keys=33),
    "attention with int64 indices": lambda: attend(rows(2, 64, 512), dtype=torch.int64),
    "attention with a sink of bf16": lambda: attend(rows(2, 64, 512), sink=torch.zeros(64).bfloat16()),
    "a selection among fp32": lambda: select(torch.zeros(2, 512)),
    "a selection among short rows": lambda: select(torch.zeros(2, 500).bfloat16()),
    "a selection with values": lambda: select(torch.zeros(2, 512).bfloat16(), return_value=True),
}


def attend(q, keys=64, dtype=torch.int32, sink=None):
    kv = torch.zeros(9, 1, q.shape[2], dtype=torch.bfloat16)
    return flash_mla.flash_mla_sparse_fwd(q, kv, torch.zeros(len(q), 1, keys, dtype=dtype), 1.0, 512, sink)


def select(scores, **other):
    end = torch.full((len(scores),), 9, dtype=torch.int32)
    options = {"sorted": False, "end": end, "indices_type": torch.int32, "sorted_index": True, "return_value": False}
    return deep_select.topk(scores, 4, **options | other)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_refuses(ascend, name):
    with pytest.raises(ShapeContractError):
        CALLS[name]()


def test_calls_that_fit_are_taken(ascend):
    attend(rows(2, 64, 512), sink=torch.zeros(64))
    select(torch.zeros(2, 512).bfloat16())
    tile_kernels.per_token_cast(rows(2, 64), "e2m1", 32, **WORDS)
