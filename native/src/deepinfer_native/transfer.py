"""Requests that begin in a PROMPT engine and go on in a COMPLETION engine (``spec/engine.md`` 1.4).

The sender (PROMPT) computes a prompt, the receiver (COMPLETION) reserved units for it; whoever moves the bytes copies
block ``i`` of the hand-off to block ``i`` of the reservation, and both slots, and then injects and acknowledges::

    prompt.submit(ids) -> event PREFILLED -> prompt.handoff(uid)
    completion.reserve(ids) -> copy -> completion.inject(handle, first_token) ; prompt.acknowledge(uid)

Units in a transfer go back at the acknowledgement only: an abort on either side waits for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import frozen

from deepinfer_native.errors import ArgumentError
from deepinfer_native.library import call, ffi, lib
from deepinfer_native.request import Ids, request_of, token_ids, whole


@frozen(eq=False)
class Reservation:
    """Units to fill for a request; ``uid`` names it in events and for `Core.abort`, ``handle`` for `Core.inject`.

    ``block_ids`` int32 ``[blocks]`` in order of positions; slots are 0 where there is no such pool.
    """

    handle: int
    uid: int
    block_ids: npt.NDArray[np.int32]
    swa_slot: int
    state_slot: int


@frozen(eq=False)
class Handoff:
    """A computed prompt: ``length`` positions in ``block_ids`` (int32 ``[blocks]``) and the slots, and what comes next.

    ``drafts`` int32 ``[K]``, or ``[0]`` where the step made none. ``is_ended``: the request was aborted; the transfer
    may stop, and must acknowledge all the same.
    """

    block_ids: npt.NDArray[np.int32]
    swa_slot: int
    state_slot: int
    length: int
    first_token: int
    drafts: npt.NDArray[np.int32]
    is_ended: bool


def _copied(pointer: Any, count: int) -> npt.NDArray[np.int32]:
    return np.frombuffer(bytes(ffi.buffer(pointer, 4 * count)), np.int32).copy() if count else np.empty(0, np.int32)


class Transfers(ABC):
    """The part of `Core` that takes and gives requests to other engines; the engine thread calls it."""

    @property
    @abstractmethod
    def _core(self) -> Any:
        """The ``di_core *``."""

    def reserve(self, prompt_ids: Ids, *, max_tokens: int, **options: Any) -> Reservation:
        """Take units for a request whose prompt a PROMPT engine computes; ``options`` as for `submit`. All or nothing.

        Raises CapacityError when there is no room now, ArgumentError for a prompt that never fits, or in another type
        of engine.
        """
        request = request_of(prompt_ids, max_tokens, options)
        out = ffi.new("di_reservation *")
        call(lib.di_reserve, self._core, request.struct, out)
        return Reservation(out.handle, out.uid, _copied(out.block_ids, out.num_blocks), out.swa_slot, out.state_slot)

    def inject(self, handle: int, first_token: int, logprob: float = 0.0, *, drafts: Ids = ()) -> None:
        """The reserved units are filled: the request runs from the next decode step that has a row for it.

        ``drafts``: none or ``num_draft`` ids for the first step to verify. The first token's event comes before that of
        the second. An aborted request ends here instead. Raises StaleHandleError for a handle that was used up.
        """
        ids = ffi.from_buffer("int32_t[]", token_ids("drafts", drafts))
        arguments = ffi.new("di_inject_args *", {"struct_size": ffi.sizeof("di_inject_args"), "num_drafts": len(ids)})
        for name, value in (("first_token", first_token), ("logprob", logprob)):
            try:
                setattr(arguments, name, value if name == "logprob" else whole(value))
            except (TypeError, OverflowError) as error:
                raise ArgumentError(f"is {value!r}: {error}", field=name) from error
        arguments.drafts = ids
        call(lib.di_inject, self._core, handle, arguments)

    def handoff(self, uid: int) -> Handoff:
        """What to send of a request after its PREFILLED event. Raises OrderError before its step is reported done."""
        out = ffi.new("di_handoff_out *")
        call(lib.di_handoff, self._core, uid, out)
        blocks, drafts = _copied(out.block_ids, out.num_blocks), _copied(out.drafts, out.num_drafts)
        return Handoff(blocks, out.swa_slot, out.state_slot, out.length, out.first_token, drafts, bool(out.is_ended))

    def acknowledge(self, uid: int) -> None:
        """The transfer is over: units go back, and the terminal event follows (LENGTH, or why the request was ended).

        In a COMPLETION engine: the sender writes no more and nothing was injected; the reservation ends with ABORT.
        Raises NotFoundError for a request that is in no transfer.
        """
        call(lib.di_acknowledge, self._core, uid)
