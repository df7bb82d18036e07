"""What the comparison loop asks of a scheduler. Times are taken around these calls and nothing else.

An external scheduler is compared by a module that has ``deepinfer_peer(settings: PeerSettings) -> Peer``; the
environment variable ``DEEPINFER_PEER_ENGINE`` names it, as a path or a dotted name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


@dataclass(frozen=True)
class PeerSettings:
    """Sizes in tokens, blocks (the null block included) and requests; intervals in decode steps."""

    block_size: int
    num_blocks: int
    num_slots: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    num_draft: int
    prefill_attempt_interval: int = 70
    prefill_any_attempt_interval: int = 100
    chunked_prefill: bool = True
    stop_preempted: bool = False


class PeerStep(NamedTuple):
    """A scheduled step, two of which may be in flight."""

    rows: int
    tokens: int  # query tokens
    is_prefill: bool


class Peer(Protocol):
    """One scheduler with its pools."""

    def add(self, prompt: Any, max_tokens: int) -> int:
        """Queue a request, int32 ids; nothing but ``max_tokens`` ends it. Returns a name for `abort`."""

    def abort(self, names: Sequence[int]) -> None:
        """End requests."""

    def schedule(self) -> PeerStep | None:
        """The next step, or None when nothing can run."""

    def pack(self) -> None:
        """The host inputs of the step that `schedule` just made."""

    def prepare(self, step: PeerStep, accepted: int) -> Any:
        """Untimed: the device's answer to a step, ``accepted`` drafts right in every row of a decode step."""

    def commit(self, answer: Any) -> None:
        """Process the answer to the oldest step in flight."""

    def emit(self) -> int:
        """Hand the tokens of that step out. Returns their number."""

    def recycle(self) -> None:
        """The device is done with that step: give back what it held."""

    def free(self) -> tuple[int, int]:
        """(blocks, slots) that may be allocated now."""

    def preempted(self) -> int:
        """Preemptions so far."""

    def close(self) -> None:
        """Give everything up."""
