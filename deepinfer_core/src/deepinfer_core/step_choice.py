"""What kind of step comes next, for one rank or for a group that steps together (``spec/engine.md`` 2.2).

The native core makes no collective: ``probe`` says what its queue wishes, ``schedule(mode)`` does what was decided. In
between, the ranks of a data-parallel group agree, because an expert-parallel forward needs every rank in a step of the
same kind::

    probe            point (none, ANY, ALL), want, running, unfinished
    reduce 1         at a point only: ANY = one rank wants, ALL = every rank wants; running: does anybody decode
    TRY_PREFILL      on the ranks that want
    reduce 2         did any rank schedule something? if not, everybody decodes: no spinning on empty prefill steps
    EMPTY_PREFILL    on the ranks that scheduled nothing while others did: d becomes 0 on all ranks alike
    reduce 3         started with the step, read after its commit: is anything unfinished, does anybody decode

A rank that schedules nothing runs a placeholder (``deepinfer_native.placeholder_inputs``) of the step's kind, until the
third reduce says that no rank has work. All ranks read that of the same step, so they stop at the same step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from deepinfer_core.errors import ConfigError, EngineError, GroupError
from deepinfer_core.records import EngineType, SchedulerOutputs, StepMode

if TYPE_CHECKING:
    from deepinfer_core.plugins.lock import PluginLock

POINT_ANY = 1
_FLAGS = 3
_OF_STEP, _OF_ATTEMPT, _OF_VOTE = 0, 1, 2  # which reduce; that of a vote has the counter d added


class StepCore(Protocol):
    """What a chooser needs of the native core."""

    config: Any

    def probe(self) -> Any: ...
    def schedule(self, mode: StepMode) -> SchedulerOutputs: ...
    def schedule_local(self) -> SchedulerOutputs: ...
    @property
    def unfinished(self) -> int: ...


class StepChooser(Protocol):
    """Phase A and the end of phase D of each step, in this order; two steps may be open in a pipeline."""

    def schedule(self, core: StepCore) -> SchedulerOutputs:
        """Make the next step. With no requests in it, this rank has nothing to run in this step."""

    def settle(self, core: StepCore) -> bool:
        """The oldest open step was committed here. False: nothing was unfinished in the group when it was scheduled. A
        rank without a group answers True: whether it goes on is in its own core (`unfinished`)."""


class PendingMax(Protocol):
    """A reduce that is under way."""

    def wait(self) -> Sequence[int]:
        """The largest value of each place over all ranks. Raises GroupError."""


class DpReducer(Protocol):
    """Joins the ranks of a data-parallel group; given to the chooser, no hook: it is on the path of each step.

    Every rank calls ``start_max`` in the same order with as many values. A rank that is gone makes ``wait`` of the
    others raise GroupError within a time limit of the implementation; it never hangs.
    """

    rank: int
    size: int

    def start_max(self, values: Sequence[int]) -> PendingMax:
        """Start the elementwise maximum of ``values`` (64-bit integers) over all ranks. Raises GroupError."""


class LocalChooser:
    """One rank: no reduce at all."""

    def schedule(self, core: StepCore) -> SchedulerOutputs:
        return core.schedule_local()

    def settle(self, core: StepCore) -> bool:
        return True


class GroupChooser:
    """One rank of a group. Raises GroupError from any call when the group is broken; it cannot go on after that."""

    def __init__(self, reducer: DpReducer, core: StepCore, *, lock: PluginLock | None = None) -> None:
        """``lock``: the plugins of this rank (``PluginManager.lock()``), compared with those of every other rank; all
        ranks give theirs, or none does.

        Raises ConfigError for a core whose ``dp_size`` is not that of the group, PluginLockError where ranks differ.
        """
        config = core.config
        if config.dp_size != reducer.size:
            raise ConfigError(
                f"dp_size is {config.dp_size}, the group has {reducer.size} ranks",
                remedy="make the core with dp_size = the size of its group",
                details={"field": "dp_size"},
            )
        if lock is not None:
            from deepinfer_core.plugins.agreement import agree_on_plugins  # imports the protocol of this module

            agree_on_plugins(reducer, lock)
        self._reducer = reducer
        self._depth: int = config.depth
        self._type = EngineType(config.engine_type)
        self._open: deque[PendingMax] = deque()
        self._settled: deque[bool] = deque(maxlen=config.depth)  # of the newest settled steps: did anybody decode
        self._broken: GroupError | None = None
        self.steps = 0
        """Steps of the group that were scheduled, this rank's placeholders included."""

    @property
    def num_open(self) -> int:
        """Scheduled steps that `settle` was not called for."""
        return len(self._open)

    def schedule(self, core: StepCore) -> SchedulerOutputs:
        if len(self._open) >= self._depth:
            raise EngineError(
                f"step {self.steps + 1} of the group was scheduled before step {self.steps - len(self._open) + 1} "
                "was settled",
                remedy="call settle once after the commit of each step",
            )
        probe = core.probe()
        outputs = self._schedule(core, probe)
        self.steps += 1
        will_decode = probe.has_running or bool(outputs.num_reqs and outputs.is_last_chunk.any())
        # Not waited for here: it travels while the device works, and is read after the commit of this step.
        self._open.append(self._start(_OF_STEP, probe.has_unfinished, will_decode))
        return outputs

    def settle(self, core: StepCore) -> bool:
        if not self._open:
            raise EngineError("no step of the group is open", remedy="call settle once after the commit of each step")
        unfinished, decodes, _ = self._read(self._open.popleft(), _OF_STEP)
        self._settled.append(bool(decodes))
        return bool(unfinished)

    def _schedule(self, core: StepCore, probe: Any) -> SchedulerOutputs:
        if self._type == EngineType.COMPLETION:
            return core.schedule(StepMode.DECODE)
        if self._type == EngineType.PROMPT:  # an empty step is still a prefill step: nothing to vote about
            outputs = core.schedule(StepMode.TRY_PREFILL)
            return outputs if outputs.num_reqs else core.schedule(StepMode.EMPTY_PREFILL)
        if not self._votes_for_prefill(probe):
            return core.schedule(StepMode.DECODE)
        tried = core.schedule(StepMode.TRY_PREFILL) if probe.want else None
        anybody, *_ = self._read(self._start(_OF_ATTEMPT, tried is not None and tried.num_reqs > 0), _OF_ATTEMPT)
        if not anybody:
            return core.schedule(StepMode.DECODE)
        if tried is not None and tried.num_reqs:
            return tried
        return core.schedule(StepMode.EMPTY_PREFILL)

    def _votes_for_prefill(self, probe: Any) -> bool:
        # A group in which nobody decodes has nothing to protect from a prompt, so it does not wait for a point. Every
        # rank must judge by the same step: by the newest that all have settled at this place, ``depth`` steps back.
        is_idle = self.steps < self._depth or not self._settled[self._depth_back()]
        if probe.point == 0 and not is_idle:
            return False
        tag = _OF_VOTE + int(probe.decode_since_prefill)
        wants, refuses, runs = self._read(self._start(tag, probe.want, not probe.want, probe.has_running), tag)
        if probe.burst_reached and runs:
            return False
        return bool(wants) if is_idle or probe.point == POINT_ANY else not refuses

    def _depth_back(self) -> int:
        """Place of step ``steps + 1 - depth`` in ``_settled``, whose last entry is that of the newest settled step."""
        newest = self.steps - len(self._open)
        return (self.steps + 1 - self._depth) - newest - 1

    def _start(self, tag: int, *values: int) -> PendingMax:
        """Every reduce has the same length and says which one it is: ranks out of step are found, not mixed up."""
        if self._broken is not None:
            raise self._broken
        flags = [int(v) for v in values] + [0] * (_FLAGS - len(values))
        return self._reducer.start_max([*flags, tag, -tag, self.steps, -self.steps])

    def _read(self, pending: PendingMax, tag: int) -> tuple[int, ...]:
        try:
            values = [int(v) for v in pending.wait()]
        except GroupError as error:
            self._broken = error
            raise
        most, least, newest, oldest = values[_FLAGS], -values[_FLAGS + 1], values[_FLAGS + 2], -values[_FLAGS + 3]
        if most != least or newest != oldest:
            self._broken = GroupError(
                f"rank {self._reducer.rank} of {self._reducer.size} is out of step with its group",
                reason=f"votes {least} to {most} (this rank {tag}), "
                f"steps {oldest} to {newest} (this rank {self.steps})",
                remedy="end all ranks and start them together, with the same settings",
                details={"rank": self._reducer.rank, "tag": tag, "step": self.steps},
            )
            raise self._broken
        return tuple(values[:_FLAGS])
