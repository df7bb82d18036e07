"""The end of observers: what one of them cannot write any more is no fault of the run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from deepinfer_core.pipeline.step_warnings import warn

if TYPE_CHECKING:
    from deepinfer_core.interfaces import StepObserver


def close_observers(observers: Iterable[StepObserver]) -> None:
    """Close all of them; one that fails is told, and the others are closed all the same."""
    for observer in observers:
        try:
            observer.close()
        except Exception as err:  # an observer must not change the run
            warn(f"W_OBSERVER: the end of {type(observer).__name__} failed: {type(err).__name__}: {err}")
