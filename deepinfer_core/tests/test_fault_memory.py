"""An error that somebody keeps holds nothing of the step that failed, which may be the memory that ran out, and nothing
of the engine. It still says where it was raised."""

from __future__ import annotations

import copy
import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
from engine_toys import Faulty, ToyBackend, ToyModel, ToySampler, prompts_of, toy_llm

from deepinfer_core.errors import CapacityError, DeepInferError, DeviceLost
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.pipeline.faults import TRACEBACK, Boundary, Owners, StepFault, without_frames

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PARTS: dict[str, tuple[str, Callable[[], Any]]] = {
    "forward": ("model", ToyModel),
    "logits": ("model", ToyModel),
    "sample": ("sampler", ToySampler),
    "bind_inputs": ("backend", ToyBackend),
}


class Activations:
    """What a step holds."""


def test_an_error_keeps_no_locals_of_the_frames_that_it_passed_through() -> None:
    held: list[weakref.ref[Activations]] = []

    def forward() -> None:
        rows = Activations()
        held.append(weakref.ref(rows))
        try:
            raise MemoryError("no more")
        except MemoryError as err:
            raise RuntimeError("the op failed") from err

    def failed() -> DeepInferError:
        try:
            with Boundary(Owners()).call("model.forward"):
                forward()
        except StepFault as fault:
            return fault.error(7)
        raise AssertionError("nothing failed")

    error = failed()
    assert error.details["step_id"] == 7
    assert isinstance(error.__cause__, RuntimeError)
    assert held[0]() is None


def failed_in(op: Callable[[], object]) -> DeepInferError:
    try:
        with Boundary(Owners()).call("model.forward"):
            op()
    except StepFault as fault:
        return fault.error(7)
    raise AssertionError("nothing failed")


def out_of_memory() -> None:
    raise MemoryError("no more")


def test_an_error_keeps_no_locals_of_those_who_called_the_step() -> None:
    """They still run when the error is made, so their frames cannot be cleared."""
    held: list[weakref.ref[Activations]] = []

    def step() -> DeepInferError:
        rows = Activations()
        held.append(weakref.ref(rows))
        return failed_in(out_of_memory)

    error = step()
    assert error.details["step_id"] == 7
    assert held[0]() is None


def test_where_an_error_was_raised_stays_in_its_text() -> None:
    error = failed_in(out_of_memory)
    for _ in range(2):
        text = "".join(traceback.format_exception(error))
        assert text.count(TRACEBACK) == 1
        assert text.index("MemoryError: no more") < text.index("in out_of_memory") < text.index("failed in step 7")
        without_frames(error)  # once is enough
    assert TRACEBACK not in str(error)


def test_an_exception_that_the_caller_is_busy_with_stays_whole() -> None:
    def of_the_caller() -> None:
        raise LookupError("mine")

    def retried() -> None:
        try:
            of_the_caller()
        except LookupError:
            with toy_llm(parts={"model": Faulty(ToyModel(), raising(RuntimeError), "forward")}) as llm:
                (output,) = llm.generate(prompts_of(1, 6), PARAMS)
            assert output.error is not None
            raise

    with pytest.raises(LookupError) as caught:
        retried()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "of_the_caller"
    assert not getattr(caught.value, "__notes__", ())


def raising(kind: type[Exception]) -> Callable[[str, int, Callable[[], Any]], Any]:
    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        raise kind("no more")

    return fault


def test_a_group_of_exceptions_keeps_no_frames_and_one_that_takes_no_notes_passes() -> None:
    class Closed(RuntimeError):
        def __setattr__(self, name: str, value: object) -> None:
            raise AttributeError(name)

    def raised(error: Exception) -> Exception:
        try:
            raise error
        except Exception as err:
            return err

    inner = raised(Closed("shut"))
    group = raised(ExceptionGroup("several", [inner]))
    assert without_frames(group) is group
    assert group.__traceback__ is None
    assert inner.__traceback__ is None


class CopyingBackend(ToyBackend):
    """Gives each record memory of its own, as a device does, and knows what of it is alive."""

    def __init__(self) -> None:
        super().__init__()
        self.bound: list[weakref.ref[Any]] = []

    def bind_inputs(self, record: Any) -> Any:
        record = copy.copy(record)
        for item in attrs.fields(type(record)):
            value = getattr(record, item.name)
            if isinstance(value, np.ndarray):
                setattr(record, item.name, value.copy())
                self.bound.append(weakref.ref(getattr(record, item.name)))
        return record

    @property
    def alive(self) -> int:
        return sum(array() is not None for array in self.bound)


@pytest.mark.usefixtures("overlap")
@pytest.mark.parametrize("kind", [RuntimeError, CapacityError, DeviceLost])
@pytest.mark.parametrize("method", list(PARTS))
def test_outputs_with_errors_hold_nothing_of_a_step_nor_of_an_engine(method: str, kind: type[Exception]) -> None:
    kept, alive, at = [], [], 0

    def fault(name: str, call: int, go: Callable[[], Any]) -> Any:
        if call == at:
            raise kind("no more")
        return go()

    backend = CopyingBackend()
    name, made = PARTS[method]
    faulty = Faulty(backend if name == "backend" else made(), fault, method)
    with toy_llm(parts={"backend": backend, name: faulty}, max_num_seqs=2) as llm:
        for _ in range(3):
            at = faulty.calls.get(method, 0) + 4
            kept.append(llm.generate(prompts_of(3, 6), PARAMS))
            assert any(output.error is not None for output in kept[-1])
            if kind is DeviceLost:
                break
            llm.generate(prompts_of(3, 6), PARAMS)
            alive.append(backend.alive)
    assert len(set(alive)) <= 1, alive
    part = weakref.ref(faulty._part)
    del llm, faulty, backend, fault
    gc.collect()
    assert part() is None
