"""The table of what an emulation covers is that of the code, on the page and in the op table."""

from pathlib import Path

import pytest

from deepinfer_ascend.backend import op_table
from deepinfer_ascend.coverage import (
    EQUIVALENT,
    KERNELS,
    LOWERED,
    NOT_COVERED,
    OWN,
    OWN_CODE,
    SIZES,
    WITHOUT_KERNEL,
    coverage,
    page_table,
    served,
)
from deepinfer_ascend.device.arenas import AscendCaches
from deepinfer_ascend.jit import serving
from deepinfer_ascend.vendor.table import TABLE
from deepinfer_core.types import CacheLayer, CacheSpec

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "ascend.md"


def test_an_op_with_a_bound_kernel_is_one_of_ours_and_has_its_sizes_told():
    bound = {op for symbol in TABLE.values() for op in symbol.ops}
    assert {op for op, how, _ in coverage() if EQUIVALENT in how} == set(SIZES) == bound
    assert bound <= set(op_table())


def test_an_op_that_is_told_as_lowered_is_one_that_lowered_kernels_serve(monkeypatch):
    from emulated_backend import emulated

    monkeypatch.setenv(serving.VARIABLE, "1")
    monkeypatch.setattr("deepinfer_ascend.backend.require_tools", lambda: None)  # nothing is executed
    made = emulated()
    told = {op for op, how, _ in coverage() if LOWERED in how}
    assert told == set(serving.serve(made.ops)) == set(KERNELS)
    assert not any(made.plan[op] == "deepinfer-cpu" for op in told)
    made.close()


@pytest.mark.parametrize("lowered", [False, True])
def test_the_plan_tells_an_op_without_kernel_as_that_of_cpu(monkeypatch, lowered):
    """What a report shows as ours is an equivalent, a lowered kernel or code of its own, and never the plain op."""
    from emulated_backend import emulated

    monkeypatch.setenv(serving.VARIABLE, str(int(lowered)))
    monkeypatch.setattr("deepinfer_ascend.backend.require_tools", lambda: None)  # nothing is executed
    made = emulated()
    told = {op: how for op, how, _ in coverage()}
    ours = {op for op, who in made.plan.items() if who != "deepinfer-cpu"}
    assert (
        ours
        == served(lowered=lowered)
        == {op for op, how in told.items() if how != NOT_COVERED and (lowered or how != LOWERED)}
    )
    made.close()


def test_an_op_that_no_kernel_serves_has_its_reason_told():
    assert {op for op, how, _ in coverage() if how == NOT_COVERED} == set(WITHOUT_KERNEL)


def test_own_code_calls_no_plain_op(monkeypatch):
    from emulated_backend import emulated, rows

    made = emulated()
    q = made.quant.cast_per_token(rows(4, 128))
    wanted = made.quant.dequantize(q)

    def refuse(op):
        raise AssertionError(f"the plain op {op} is called")

    for module in ("quant", "attention"):
        monkeypatch.setattr(f"deepinfer_ascend.ops.{module}.plain_op", refuse)
    calls = {"attn.plan": lambda: made.attn.plan({"rows": 4}), "quant.dequantize": lambda: made.quant.dequantize(q)}
    assert (
        {op for op, how, _ in coverage() if how == OWN} == set(OWN_CODE) == set(calls) | {"cache.alloc", "cache.view"}
    )
    assert calls["attn.plan"]().shapes == {"rows": 4}
    assert calls["quant.dequantize"]().equal(wanted)
    caches = made.cache.alloc([CacheSpec("swa", "swa", [CacheLayer(0, 8, "v41", 64)])], {"swa": 3})
    assert isinstance(caches, AscendCaches)
    assert made.cache.view(caches, "swa", 0).tensor.shape == (3, 8, 66)
    made.close()


@pytest.mark.skipif(not PAGE.is_file(), reason="without the sources of the documentation")
def test_the_page_has_the_table():
    assert page_table() in PAGE.read_text(), "python -m deepinfer_ascend.coverage prints what belongs there"
