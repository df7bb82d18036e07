"""Lowered kernels, executed on the processor: the numbers of the plain ops, whatever the order of threads."""

import pytest
import torch
from emulated_backend import emulated, rows
from executed import MANY, MARKS, execute, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.chip import CUBE_CORES
from deepinfer_ascend.jit import hosted, serving
from deepinfer_ascend.jit.lowering import Argument, Lowered
from deepinfer_ascend.plain import plain_op
from deepinfer_ascend.tensors import PlainWeight
from deepinfer_core.errors import EngineError, ShapeContractError

pytestmark = MARKS
CAST = ("e4m3", 32, "ue8m0")
ULP = 2.0**-7
"""Of bf16, at most: sums of a norm are made in another order than those of the plain op."""


@pytest.mark.parametrize("count", [0, 1, MANY])
def test_rms_rows(count):
    x, w = rows(count, 512), torch.rand(512)
    made = execute("rms_rows", {"width": 512}, {"y": torch.empty_like(x)}, x=x, w=w, eps=1e-6, rows=count)
    torch.testing.assert_close(made["y"], plain_op("norm.rms")(x, w, eps=1e-6)[0], atol=0.0, rtol=ULP)


def test_swiglu_rows():
    x, weight = rows(MANY, 128) * 5, torch.rand(MANY)
    y = torch.empty(MANY, 64, dtype=torch.bfloat16)
    made = execute("swiglu_rows", {"inner": 64}, {"y": y}, x=x, weight=weight, limit=3.0, rows=MANY)
    assert torch.equal(made["y"], plain_op("moe.swiglu")(x, clamp=3.0, weight=weight))


@pytest.mark.parametrize("conjugate", [False, True])
def test_rotary_rows(conjugate):
    x, angles = rows(MANY, 64), torch.randn(MANY, 16)
    sizes = {"width": 64, "turned": 16}
    given = {"x": x, "angles": angles, "flip": -1.0 if conjugate else 1.0, "rows": MANY}
    made = execute("rotary_rows", sizes, {"y": torch.empty_like(x)}, **given)
    wanted = plain_op("transform.rotary")(x, (angles, torch.arange(MANY), conjugate))
    torch.testing.assert_close(made["y"], wanted, atol=0.0, rtol=ULP)  # the plain op may fuse a product and a sum


FP4 = {"width": 128, "fmt": "e2m1"}
CASTS = [{"width": 256}, FP4, pytest.param(FP4 | {"group": 16, "sf": "e4m3"}, marks=pytest.mark.slow)]


@pytest.mark.parametrize("sizes", CASTS, ids=str)
def test_cast_rows(sizes):
    """Subnormal, normal and huge groups, a group of zeros, zeros of both signs, groups with NaN and infinities."""
    x = rows(MANY, sizes["width"]) * torch.logspace(-9, 5, MANY).unsqueeze(1).bfloat16()
    x[3], x[4, ::2], x[4, 1::2] = 0.0, -0.0, 0.5
    if sizes == {"width": 256}:  # the other format has no NaN
        x[5, 7], x[5, 9], x[6, 3], x[6, 40] = float("nan"), 0.0, float("inf"), -float("inf")
    form = {"fmt": "e4m3", "group": 32, "sf": "ue8m0"} | {key: sizes[key] for key in sizes if key != "width"}
    wanted = plain_op("quant.cast_per_token")(x, **form)
    outputs = {"codes": torch.empty_like(wanted.data), "scales": torch.empty_like(wanted.sf)}
    made = execute("cast_rows", sizes, outputs, x=x, rows=MANY)
    assert torch.equal(made["codes"], wanted.data)
    assert torch.equal(made["scales"], wanted.sf)


def test_ring_and_run_indices():
    pairs = torch.tensor([[134 * 2 + 130, 20], [5, 0], [0, 32]] * 30, dtype=torch.int32)
    out = torch.empty(90, 32, dtype=torch.int32)
    made = execute("ring_indices", {"width": 32}, {"out": out}, start_length=pairs, ring=134, rows=90)
    assert torch.equal(made["out"], plain_op("meta.window_index_decode")(pairs, 134, 32))
    out = torch.empty(90, 512, dtype=torch.int32)
    made = execute("run_indices", {"width": 512}, {"out": out}, start_length=pairs, base=7, rows=90)
    assert torch.equal(made["out"], plain_op("meta.compressed_index")(pairs, 512, base=7))


def test_gather_rows():
    x, idx = rows(9, 256), torch.tensor([0, 8, 9, -1, 3, -(2**31), 2**31 - 1], dtype=torch.int32)
    out = torch.empty(7, 256, dtype=torch.bfloat16)
    made = execute("gather_rows", {"width": 256}, {"out": out}, x=x, idx=idx, rows=7, count=9)
    assert torch.equal(made["out"], plain_op("meta.gather_rows")(x, idx))


def test_mask_rows():
    logits, places = torch.randn(5, 1536), torch.tensor([3, -1, 0], dtype=torch.int32)
    bitmask = torch.randint(-(2**31), 2**31, (3, 48), dtype=torch.int64).int()
    given = {"bitmask": bitmask, "places": places, "rows": 5, "count": 3}
    made = execute("mask_rows", {"width": 1536}, {"logits": logits}, begin=logits, **given)
    reqs, first = torch.tensor([1, 0], dtype=torch.int32), torch.tensor([0, 3, 5], dtype=torch.int32)
    wanted = plain_op("sample.mask")(logits.clone(), bitmask[[0, 2]], reqs, first, 0)
    assert torch.equal(made["logits"], wanted)


def test_mix_coefficients():
    """fp32 against the fp64 of the plain op: within 1e-5, as the table of ops has it."""
    torch.manual_seed(3)
    logits = torch.randn(200, 24) * 3
    outputs = {"both": torch.empty(200, 8), "comb": torch.empty(200, 16)}
    sizes = {"streams": 4, "iters": 20}
    fn, ones = torch.eye(24, 24), torch.ones(3)
    params = plain_op("mhc.prepare")(fn, ones, torch.zeros(24), iters=20, eps=1e-6, norm_eps=0.0)
    # A stream whose norm is 1 and whose matrix is the unit one has itself for logits.
    factor = (logits.square().mean(1, keepdim=True)).rsqrt()
    _, a, post, comb = plain_op("mhc.pre")(logits.view(200, 4, 6), torch.zeros(200, 4), params)
    made = execute("mix_coefficients", sizes, outputs, logits=logits * factor, eps=1e-6, rows=200)
    torch.testing.assert_close(made["both"], torch.cat([a, post], 1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(made["comb"].view(200, 4, 4), comb.contiguous(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [1, 63, 130])
def test_dense_rows(count):
    """Edges of tiles of 64 rows; nd2nz, the cube and the way back."""
    x, w = rows(count, 256), rows(128, 256, seed=2)
    sizes, y = {"outputs": 128, "inputs": 256}, torch.empty(count, 128)
    made = execute("dense_rows", sizes, {"y": y}, CUBE_CORES, x=x, w=w, rows=count)
    wanted = plain_op("gemm.dense")(x, PlainWeight("w", w.float().t().contiguous()), out_dtype=torch.float32)
    torch.testing.assert_close(made["y"], wanted, atol=1e-4, rtol=1e-5)


def test_ops_that_lowered_kernels_serve_give_what_the_plain_ones_do():
    """Casts are compared by their values, within a code: a norm may differ by an ulp before them."""
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    made = emulated()
    served, ops = serving.serve(made.ops), made.ops
    x, w, pairs = rows(3, 2, 64), torch.rand(64), torch.tensor([[3, 9], [140, 32]], dtype=torch.int32)
    turn = ops["transform.rope_rows"](ops["transform.rope_table"](9, 16, theta=1e4), torch.tensor([0, 4, 8]))
    for op, arguments, options in (
        ("norm.rms", (x, w), {"eps": 1e-6, "cast": CAST}),
        ("transform.fused", (x,), {"norm": (w, 1e-6), "rope": (turn, True), "cast": CAST}),
        ("moe.swiglu", (rows(4, 128),), {"clamp": 2.0, "cast": CAST}),
        ("meta.window_index_decode", (pairs, 134, 32), {}),
    ):
        mine, wanted = (list(values(which[op](*arguments, **options))) for which in (served, ops))
        torch.testing.assert_close(mine, wanted, atol=1e-3, rtol=2**-3)
    made.close()


def test_what_no_op_takes_no_kernel_takes():
    made = emulated()
    fused, x = serving.serve(made.ops)["transform.fused"], rows(3, 64)
    for bad in ({"copy_stage": "rope"}, {"copy_stage": "cast_back"}, {"cast": ("e4m3", 48, "ue8m0")}):
        with pytest.raises(ShapeContractError):
            fused(x, **bad)
    with pytest.raises(TypeError, match="rotation"):
        fused(x, rotation=None)
    made.close()


def values(found):
    """The tensors of a result, what is cast as its values."""
    for part in found if isinstance(found, tuple) else (found,):
        yield part if isinstance(part, torch.Tensor) else part.values


# --- the shim itself notices what a core would not survive ------------------------------------------------------------


def written(body, threads=4, region=""):
    """A kernel written by hand: one region of threads, then ``body``."""
    source = f"""
#include <tl_templates/ascend/common.h>
__simt_vf__ __launch_bounds__({threads}) inline void region(__ubuf__ int32_t* ub, int32_t* out) {{ {region} }}
extern "C" __global__ __vector__ void hand_kernel(__gm__ int32_t* out) {{
  asc_init();
  __ubuf__ int32_t *ub = (__ubuf__ int32_t *)0;
  {body}
}}
"""
    return Lowered("hand", source, "hand_kernel", (Argument("out", "int32_t", True),), 0.0)


CALL = "asc_vf_call<region>(cce::dim3({threads}), ub, out);"
FAULTS = {
    "it wrote behind the on-chip memory": written("ub[248 * 256 + 1] = 1;"),
    "some threads wait at a barrier": written(
        CALL.format(threads=4), region="if (threadIdx.x < 2) asc_syncthreads(); out[threadIdx.x] = 1;"
    ),
    "no multiple of 32 bytes": written(
        "asc_copy_ub2gm_align((uint8_t*)out, (uint8_t*)(ub + 1), 1, 4, asc_store_l2_cache_mode(0), 4, 4);"
    ),
    "waits for an event": written("asc_sync_wait(PIPE_MTE2, PIPE_V, static_cast<event_t>(0));"),
    "more threads than a core": written(CALL.format(threads=4096)),
}


@pytest.mark.parametrize("told", FAULTS)
def test_the_shim_finds(told):
    with pytest.raises(EngineError, match=told):
        hosted.run(FAULTS[told], 1, out=torch.zeros(8, dtype=torch.int32))


def test_the_two_orders_of_threads_show_a_race():
    kernel = written(CALL.format(threads=4), region="out[0] = threadIdx.x;")
    found = []
    for backwards in (False, True):
        out = torch.zeros(1, dtype=torch.int32)
        hosted.run(kernel, 1, backwards=backwards, out=out)
        found.append(int(out))
    assert found == [3, 0]


def test_threads_meet_at_a_barrier():
    region = "ub[threadIdx.x] = threadIdx.x; asc_syncthreads(); out[threadIdx.x] = ub[3 - threadIdx.x];"
    out = torch.zeros(4, dtype=torch.int32)
    assert hosted.run(written(CALL.format(threads=4), region=region), 1, out=out) == {"UB": 16}
    assert out.tolist() == [3, 2, 1, 0]


def test_arguments_of_another_type_are_refused():
    kernel = written("")
    for given in ({}, {"out": torch.zeros(3)}, {"out": torch.zeros(4, 4, dtype=torch.int32).t()}, {"out": 1}):
        with pytest.raises(ShapeContractError):
            hosted.run(kernel, 1, **given)


def test_a_source_that_does_not_compile_is_told_with_the_compilers_words():
    with pytest.raises(EngineError, match="cannot be compiled for the processor") as caught:
        hosted.run(written("asc_no_such_call();"), 1, out=torch.zeros(1, dtype=torch.int32))
    assert "asc_no_such_call" in caught.value.reason
