"""An error that somebody keeps holds nothing of the step that failed: it may be the memory that ran out."""

from __future__ import annotations

import weakref

from deepinfer_core.errors import DeepInferError
from deepinfer_core.pipeline.faults import Boundary, Owners, StepFault


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
    assert error.__cause__.__traceback__ is not None
    assert held[0]() is None
