"""What goes in and out: steps, events, and one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

TRY_PREFILL, DECODE, EMPTY_PREFILL = 0, 1, 2  # modes of schedule
ABORT_ACCEPTED, ABORT_FINISHED, ABORT_UNKNOWN = 0, 1, 2
KIND_DECODE, KIND_PREFILL = 0, 1
TOKEN, FINISH, PREFILLED = 0, 1, 2  # kinds of events
NORMAL, PROMPT, COMPLETION = 0, 1, 2  # engine types
LAST, FROM_DRAFT = 1, 2  # flags of events
FLAG_EMPTY, FLAG_IDENTITY, FLAG_OVERRUN, FLAG_FORKS, FLAG_REPLAY = 1, 2, 4, 8, 16  # flags of outputs
POOL_MAIN, POOL_INDEX, POOL_SWA, POOL_STATE, POOL_DRAFT = range(5)


class Reason(IntEnum):
    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORT = 3
    TOO_LONG = 4
    NO_RESOURCE = 5
    GRAMMAR = 6
    INPUT = 7
    ENGINE = 8


class Phase(IntEnum):
    SUBMITTED = 0  # in the command list: the scheduler has not looked at it
    WAITING = 1
    PREFILL = 2
    RUNNING = 3
    ZOMBIE = 4
    RETIRED = 5
    HANDOFF = 6


class Refused(Exception):
    """A call that changes nothing. ``code`` names the kind of error."""

    def __init__(self, code: str, text: str):
        super().__init__(text)
        self.code = code


@dataclass(eq=False)
class Request:
    """One request (1.1): phase, counts of steps in flight, and the handles that a release consumes."""

    uid: int
    tokens: list[int]
    max_tokens: int
    min_tokens: int = 0
    stop: frozenset = frozenset()
    priority: int = 0
    prompt_len: int = 0
    phase: Phase = Phase.SUBMITTED
    reason: Reason = Reason.NONE
    ticket: int = 0
    queue_class: int = 2  # 0 continuation of a prompt, 1 preempted, 2 new
    generation: int = 0
    cached: int = 0
    inflight: int = 0  # launched, uncommitted steps of this generation
    inflight_all: int = 0  # ... of every generation
    holds: int = 0
    awaits_first: bool = False  # the step that ends its prompt is in flight
    has_drafts: int = False  # 2: the host has ids, the device nothing of them
    drafts: list[int] = field(default_factory=list)  # what its next step verifies
    last_step: int = 0
    last_row: int = -1
    blocks: list[int] = field(default_factory=list)
    swa_slot: int = 0
    state_slot: int = 0
    draft_slot: int = 0
    row_slot: int = 0
    final_output: int = 0
    parent: int = 0  # of a child that waits for its clone
    was_forked: bool = False
    is_reserved: bool = False  # units were given, the cache is not there yet
    ending: Reason = Reason.NONE  # waits for the acknowledgement of a transfer
    first_waits: bool = False  # the event of its first token is not out
    prefix_lookup: bool = True
    store_from: int = 0  # positions below lie in shared blocks of a hit
    swa_valid_start: int = 0  # first position with window history
    replay_mode: str = "off"
    keep_from: int = 0  # first prompt position that the decoder half keeps
    chain_epoch: int = 0
    chain: list = field(default_factory=list)  # (registered block, its life) of each full block offered
    has_twins: bool = False  # some of the chain are others' blocks, which this request does not hold

    @property
    def len(self) -> int:
        return len(self.tokens)

    @property
    def n_output(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def is_terminal(self) -> bool:
        return self.phase in (Phase.ZOMBIE, Phase.RETIRED)


@dataclass
class Drafts:
    """What the sampler proposes for a row; an id below 0 is no draft."""

    ids: list[int]
    confidence: list[float] | None  # None: each of them counts as certain


@dataclass
class Row:
    """One request in one launched step."""

    request: Request
    generation: int
    start: int
    q: int
    is_last_chunk: bool


@dataclass
class Step:
    step_id: int
    kind: int
    rows: list[Row] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(r.q for r in self.rows)


@dataclass
class Outputs:
    """The contract record of 6.1, one list entry a row."""

    step_id: int
    kind: int
    flags: int = 0
    num_reqs: int = 0
    num_decode_reqs: int = 0
    num_batched_tokens: int = 0
    seq_uid: list = field(default_factory=list)
    generation: list = field(default_factory=list)
    row_slot: list = field(default_factory=list)
    seqlens_q: list = field(default_factory=list)
    seqlens_k: list = field(default_factory=list)
    cached: list = field(default_factory=list)
    inflight: list = field(default_factory=list)
    full_len: list = field(default_factory=list)
    is_last_chunk: list = field(default_factory=list)
    remap: list = field(default_factory=list)
    state_slot: list = field(default_factory=list)
    swa_slot: list = field(default_factory=list)
    draft_read_slot: list = field(default_factory=list)
    draft_write_slot: list = field(default_factory=list)
    swa_valid_start: list = field(default_factory=list)
    tables: list = field(default_factory=list)  # block ids of each row
    bt_delta: list = field(default_factory=list)
    zero_slots: list = field(default_factory=list)
    clone_slots: list = field(default_factory=list)
    clone_blocks: list = field(default_factory=list)
    finished_uid: list = field(default_factory=list)
    finished_reason: list = field(default_factory=list)
    ignored_uid: list = field(default_factory=list)
    ignored_reason: list = field(default_factory=list)
    held_uid: list = field(default_factory=list)
    preempted_uid: list = field(default_factory=list)
    hit_tokens: list = field(default_factory=list)
    replayed_tokens: list = field(default_factory=list)
    sum_qk: int = 0
    min_k: int = 0
    max_k: int = 0
    predicted_ns: int = 0
    budget_ns: int = 0

    @property
    def bt_offsets(self) -> list:
        out = [0]
        for table in self.tables:
            out.append(out[-1] + len(table))
        return out

    @property
    def bt_ids(self) -> list:
        return [b for table in self.tables for b in table]


@dataclass
class Event:
    """One entry of an event batch (6.6), without the sampler's own numbers."""

    seq_uid: int
    kind: int
    flags: int
    token_id: int
    output_index: int
    prompt_len: int
    finish_reason: int
    drafted: int = 0
    accepted: int = 0
