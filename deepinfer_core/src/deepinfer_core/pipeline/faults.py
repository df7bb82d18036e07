"""What goes wrong in a plugin call of a step, with the name of the call and of the plugin."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar

from attrs import frozen

from deepinfer_core.errors import DeepInferError, EngineError
from deepinfer_core.pipeline.sampled import wrong_step_return
from deepinfer_core.plugins.failure import blame, exception_text

TRACEBACK = "Traceback (most recent call last):"
Kept = TypeVar("Kept", bound=BaseException)


@frozen
class Owners:
    """Who made the parts, as a fault names them: ``first (acme-sampler 0.1)``. Empty: not known."""

    backend: str = ""
    model: str = ""
    sampler: str = ""
    grammar: str = ""

    def of(self, op: str) -> str:
        """The owner of a call such as ``model.forward``; caches and ops are the backend's, the core has no owner."""
        part = op.partition(".")[0]
        return str(getattr(self, "backend" if part in ("caches", "meta") else part, ""))


class StepFault(Exception):
    """A plugin call of a step failed. ``op`` names the call, ``owner`` the plugin."""

    def __init__(self, op: str, cause: Exception, owner: str = "") -> None:
        super().__init__(f"{op}: {cause}")
        self.op = op
        self.cause = cause
        self.owner = owner

    def error(self, step_id: int) -> DeepInferError:
        """The failure as the requests of the step report it."""
        cause = self.cause
        details: dict[str, object] = {"op": self.op, "exception": type(cause).__name__, "step_id": step_id}
        if self.owner:
            details["plugin"] = self.owner
        if isinstance(cause, DeepInferError):
            details["code"] = cause.code
            details.update(cause.details)
            layer = f" in layer {cause.details['layer']}" if "layer" in cause.details else ""
            reason = f"{cause.code}: {cause.what}{layer}" + (f" ({cause.reason})" if cause.reason else "")
        else:
            reason = f"{exception_text(cause)} (raised at {blame(cause)})"
        remedy = "the requests of this step end; run with --debug for the traceback"
        if self.owner:
            remedy = f"report it to the authors of {self.owner}, with the traceback that --debug prints"
        error = EngineError(
            f"{self.op}{f' of {self.owner}' if self.owner else ''} failed in step {step_id}",
            reason=reason,
            remedy=getattr(cause, "remedy", "") or remedy,
            details=details,
        )
        error.__cause__ = cause
        without_frames(self)
        return without_frames(error)


def without_frames(err: Kept) -> Kept:
    """``err``, and what led to it, with the text of their tracebacks as notes in place of the frames.

    A frame holds its locals and, through its callers, theirs: the tensors of the step, and the parts of the engine. A
    person may keep the error, when the device has just run out of memory and behind the end of the engine; nor shall
    these wait for the collector. An exception that a caller is busy with, and that is none of the step, stays whole.
    Frames are let go and not cleared: one may be that of a generator which goes on.
    """
    running = {frame for frame, _ in traceback.walk_stack(sys._getframe(1))}
    seen: set[int] = set()
    left: list[BaseException | None] = [err]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        left += (one.__cause__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()))
        context = one.__context__
        if context is not None and (context.__traceback__ is None or context.__traceback__.tb_frame not in running):
            left.append(context)
        if one.__traceback__ is not None:
            _note_traceback(one)
            one.with_traceback(None)
    return err


def _note_traceback(err: BaseException) -> None:
    """Where ``err`` was raised at first, for whoever prints it; an exception that takes no notes has none."""
    with suppress(Exception):
        if not any(str(note).startswith(TRACEBACK) for note in getattr(err, "__notes__", ())):
            err.add_note(f"{TRACEBACK}\n{''.join(traceback.format_tb(err.__traceback__)).rstrip()}")


@frozen
class Boundary:
    """The line between the step loop and the plugins: what crosses it is named and checked."""

    owners: Owners
    explain: Callable[[str, Exception], Exception | None] | None = None
    """``Backend.explain_fault``, of a backend that has it."""

    def call(self, op: str) -> Call:
        """A context in which whatever ``op`` raises becomes a StepFault that names it."""
        return Call(self, op)

    def fault(self, op: str, err: Exception) -> StepFault:
        """The fault of ``op``, with what the backend knows of ``err`` in its place; a call within it has its own."""
        if isinstance(err, StepFault):
            return err
        known = None if self.explain is None or isinstance(err, DeepInferError) else self.explain(op, err)
        if known is not None:
            known.__cause__ = err
        return StepFault(op, known or err, self.owners.of(op))

    def expect_rows(self, op: str, tensor: Any, rows: int) -> None:
        """Raises EngineError for a result that has no length, or another one."""
        if not hasattr(tensor, "__len__"):
            got = "None" if tensor is None else type(tensor).__name__
            raise wrong_step_return(op, self.owners.of(op), got, f"a tensor of {rows} rows")
        if len(tensor) != rows:
            raise EngineError(f"{op} returned {len(tensor)} rows, expected {rows}", details={"op": op})


class Call:
    """The context of one plugin call; a class, because there are ten of them in each step."""

    __slots__ = ("_boundary", "_op")

    def __init__(self, boundary: Boundary, op: str) -> None:
        self._boundary = boundary
        self._op = op

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(err, Exception):  # the plugin boundary: stored in the fault and reported by name
            raise self._boundary.fault(self._op, err) from err


def internal_fault(err: Exception) -> EngineError:
    """What is no plugin's fault: of the native core, or of the glue around it."""
    error = EngineError(
        "the step loop failed",
        reason=f"{type(err).__name__}: {err}",
        remedy="this is a bug; report it with the traceback that --debug prints",
        details={"exception": type(err).__name__},
    )
    error.__cause__ = err
    return error


def nothing_runs(num_reqs: int, stats: Any) -> EngineError:
    """The error of requests of which the scheduler, with these counters, runs none."""
    return EngineError(
        f"no step could be scheduled for {num_reqs} requests",
        reason=f"scheduler state: {stats}",
        remedy="this is a bug of the scheduler; report it with this text",
        details={"requests": num_reqs, "stats": str(stats)},
    )
