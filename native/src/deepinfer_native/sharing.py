"""Requests that share cache units: forks, external pins, and the prefix cache (``spec/engine.md`` 2.10, 2.11, 4.6)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from deepinfer_contracts import Pool
from deepinfer_native.errors import ArgumentError
from deepinfer_native.library import call, check, ffi, lib
from deepinfer_native.request import Ids, token_ids, whole


class Sharing(ABC):
    """What a `Core` offers for it. All of it belongs to the engine thread."""

    @property
    @abstractmethod
    def _core(self) -> Any:
        """The ``di_core *``; StaleHandleError when closed."""

    def fork(self, parent_uid: int, *, seed: int, max_tokens: int | None = None, at_prompt: bool = False) -> int:
        """Make a child that goes on from the parent's committed tokens, or its prompt; returns the child's uid.

        What the child takes over is its prompt. It inherits sampling parameters, stop ids, priority and what is left of
        ``min_tokens``; ``max_tokens`` defaults to what the parent has left at that place. It runs once the parent's
        prompt is computed: in the next decode step over copies of the parent's caches (``clone_slots``,
        ``clone_blocks``), or as a prompt of its own where that is not possible (``spec/engine.md`` 2.11). Raises
        NotFoundError if the parent has ended, ArgumentError naming the argument.
        """
        args, uid = ffi.new("di_fork_args *"), ffi.new("uint64_t *")
        args.struct_size = ffi.sizeof("di_fork_args")
        try:
            if max_tokens is not None and (max_tokens := whole(max_tokens)) < 1:
                raise ArgumentError(f"is {max_tokens}, at least 1 is needed", field="max_tokens")
            args.seed, args.max_tokens, args.at_prompt = whole(seed), max_tokens or 0, whole(at_prompt)
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"an argument does not fit: {error}", field="fork") from error
        call(lib.di_fork, self._core, parent_uid, args, uid)
        return int(uid[0])

    def pin(self, pool: Pool, units: Ids) -> int:
        """Hold units that live requests have, beyond their end, until `unpin`; returns a handle.

        ``units``: ids of ``pool`` (INDEX is MAIN). Nobody gets a pinned unit; the request that owns it may still write
        behind its committed positions. Raises ArgumentError naming the unit.
        """
        ids, handle = token_ids("units", units), ffi.new("uint64_t *")
        call(lib.di_pin, self._core, pool, ffi.from_buffer("int32_t[]", ids), len(ids), handle)
        return int(handle[0])

    def unpin(self, handle: int) -> None:
        """Give a pin back; its units are reused after the newest launched step. Raises StaleHandleError."""
        call(lib.di_unpin, self._core, handle)

    def reset_prefix_cache(self, salt: int | None = None) -> None:
        """Forget every cached prefix, because the weights changed; ``salt`` replaces ``prefix_salt``.

        Requests go on, and nothing that they computed before is offered later. Raises BusyError while a block has more
        than one holder, ConfigurationError without a prefix cache.
        """
        try:
            value = ffi.NULL if salt is None else ffi.new("uint64_t *", whole(salt))
        except (TypeError, OverflowError) as error:
            raise ArgumentError(f"is {salt!r}: {error}", field="salt") from error
        check(lib.di_reset_prefix_cache(self._core, value))
