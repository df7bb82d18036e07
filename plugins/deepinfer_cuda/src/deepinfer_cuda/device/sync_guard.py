"""Finds calls that wait for the device where none may: torch's debug mode, with the place of the call.

The mode belongs to the process, the wish to a thread: each thread has a stack of wishes, forbid or allow, and the one
on top counts. The mode is on while a thread forbids and none allows. So the wish of one thread to allow lifts it for
all: the guard can miss a call, and never reports one that was allowed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from deepinfer_core.errors import HiddenSync

_TORCH = str(Path(torch.__file__).parent)
_MARK = "synchronizing CUDA operation"
"""In the text of the error that torch raises in its debug mode."""


class SyncWishes:
    """What the threads of the process wish.

    :param set_mode: ``torch.cuda.set_sync_debug_mode``.
    """

    def __init__(self, set_mode: Callable[[str], object]) -> None:
        self._set_mode = set_mode
        self._lock = threading.Lock()
        self._wishes: dict[int, list[bool]] = {}
        self._is_on = False

    def push(self, forbids: bool) -> None:
        with self._lock:
            self._wishes.setdefault(threading.get_ident(), []).append(forbids)
            self._apply()

    def pop(self) -> None:
        me = threading.get_ident()
        with self._lock:
            self._wishes[me].pop()
            if not self._wishes[me]:
                del self._wishes[me]
            self._apply()

    def _apply(self) -> None:
        on = bool(self._wishes) and all(stack[-1] for stack in self._wishes.values())
        if on != self._is_on:
            self._is_on = on
            self._set_mode("error" if on else "default")


WISHES = SyncWishes(torch.cuda.set_sync_debug_mode)


class NoSync:
    """Context manager: a call that waits for the device raises HiddenSync with the place of the call."""

    __slots__ = ("_mode", "_wishes")

    def __init__(self, wishes: SyncWishes = WISHES) -> None:
        self._wishes = wishes
        self._mode = _Places()

    def __enter__(self) -> None:
        self._wishes.push(True)
        self._mode.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._mode.__exit__(kind, error, trace)
        self._wishes.pop()


class AllowSync:
    """Context manager: this thread may wait for the device, also inside :class:`NoSync`."""

    __slots__ = ("_wishes",)

    def __init__(self, wishes: SyncWishes = WISHES) -> None:
        self._wishes = wishes

    def __enter__(self) -> None:
        self._wishes.push(False)

    def __exit__(self, *exc: object) -> None:
        self._wishes.pop()


class _Places(TorchFunctionMode):
    """Turns torch's complaint into a HiddenSync where the call was made."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except RuntimeError as exc:
            if _MARK not in str(exc):
                raise
            raise _hidden_sync(getattr(func, "__name__", str(func))) from exc


def _hidden_sync(op: str) -> HiddenSync:
    frame: FrameType | None = sys._getframe(1)
    place = "an unknown place"
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and not file.startswith(_TORCH):
            place = f"{file}:{frame.f_lineno}"
            break
        frame = frame.f_back
    return HiddenSync(
        f"{op} at {place} waits for the device while a step is launched",
        reason="the host would wait there for everything launched before, and no step would overlap",
        remedy="keep the value on the device, or read it where the results of the step are committed",
        details={"op": op, "place": place},
    )
