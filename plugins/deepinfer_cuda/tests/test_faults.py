"""Faults of the device as typed errors, with the exceptions of torch and of TVM in their place."""

import inspect

import pytest
import torch

from deepinfer_core.errors import CapacityError, DeviceLost, NanFound, ShapeContractError
from deepinfer_cuda import faults
from deepinfer_cuda.tensors import QuantTensor

ILLEGAL = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress'"


def raising(exc):
    def op(x, *, eps=1.0):
        raise exc

    return op


@pytest.fixture
def device(monkeypatch):
    """``device(alive)``: whether it answers after the fault."""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    return lambda alive: monkeypatch.setattr(faults, "is_alive", lambda: alive)


def call(exc):
    return faults.guarded("gemm.dense", raising(exc))(torch.ones(1))


def test_an_op_keeps_its_signature_and_its_result():
    op = faults.guarded("norm.rms", faults.watched("norm.rms", lambda x, *, eps=1.0: (x, eps)))
    assert str(inspect.signature(op)) == "(x, *, eps=1.0)"
    assert op(3, eps=2.0) == (3, 2.0)


@pytest.mark.parametrize(
    "exc",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1024.00 GiB.\nmore"),
        torch.AcceleratorError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_no_memory_is_a_capacity_error_that_names_the_op(exc):
    with pytest.raises(CapacityError) as caught:
        call(exc)
    assert caught.value.what == "gemm.dense: the device has no memory left"
    assert caught.value.reason == str(exc).splitlines()[0]
    assert caught.value.details["op"] == "gemm.dense"
    assert caught.value.__cause__ is exc


@pytest.mark.parametrize("kind", [torch.AcceleratorError, RuntimeError])
def test_a_fault_after_which_the_device_is_silent_is_a_lost_device(device, kind):
    device(False)
    with pytest.raises(DeviceLost) as caught:
        call(kind(ILLEGAL))
    assert caught.value.what == "gemm.dense: the device is lost"
    assert caught.value.reason.startswith("CUDA error: an illegal memory access was encountered; it may have happened")


def test_a_launch_that_is_refused_loses_nothing(device):
    device(True)
    with pytest.raises(RuntimeError, match="invalid configuration argument"):
        call(RuntimeError("CUDA error: invalid configuration argument"))


def test_a_device_is_not_asked_while_a_graph_is_captured(monkeypatch, device):
    device(False)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
        call(RuntimeError("CUDA error: operation not permitted when stream is capturing"))


@pytest.mark.parametrize("exc", [ValueError("expected 3 inputs"), ShapeContractError("x"), KeyError("a")])
def test_other_exceptions_stay_what_they_are(device, exc):
    device(False)
    with pytest.raises(type(exc)) as caught:
        call(exc)
    assert caught.value is exc


def test_nan_is_told_with_op_and_rows():
    x = torch.zeros(4, 2, 3)
    x[1, 1, 2] = x[3, 0, 0] = float("nan")
    with pytest.raises(NanFound) as caught:
        faults.watched("norm.rms", lambda: (torch.ones(4), x))()
    assert caught.value.what == "norm.rms gave NaN in 2 of 4 rows: 1, 3"
    assert caught.value.details["rows"] == [1, 3]


def test_many_rows_are_cut_short_in_the_message_and_whole_in_the_details():
    with pytest.raises(NanFound) as caught:
        faults.watched("norm.rms", lambda: torch.full((20, 2), float("nan")))()
    assert caught.value.what == "norm.rms gave NaN in 20 of 20 rows: 0, 1, 2, 3, 4, 5, 6, 7, ..."
    assert caught.value.details["rows"] == list(range(20))


@pytest.mark.parametrize("op", ["index.logits", "index.block_max"])
def test_places_that_nobody_reads_may_hold_nan(op):
    assert faults.watched(op, lambda: torch.full((2,), float("nan")))().isnan().all()


def test_infinity_integers_empty_and_quantised_results_are_no_nan():
    sf = torch.full((1, 1), 127, dtype=torch.uint8)
    codes = QuantTensor(fmt="e4m3", group=32, sf_kind="ue8m0", sf=sf, data=torch.zeros(1, 32, dtype=torch.uint8))
    for result in (torch.tensor([float("inf")]), torch.ones(2, dtype=torch.int32), torch.zeros(0, 3), None, (codes, 1)):
        assert faults.watched("norm.rms", lambda result=result: result)() is result


def test_every_op_is_wrapped_and_the_look_for_nan_is_asked_for():
    ops = {"norm.rms": lambda: torch.tensor([float("nan")])}
    faults.wrapped(ops, watch=False)["norm.rms"]()
    with pytest.raises(NanFound):
        faults.wrapped(ops, watch=True)["norm.rms"]()
