"""The vote on the kind of a step (``spec/engine.md`` 2.2), with ranks that are threads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dp_ranks import Rank, ThreadGroup, check_group, dp_config, run_ranks

from deepinfer_contracts import EngineType, StepKind, StepMode
from deepinfer_core.errors import ConfigError, EngineError, GroupError
from deepinfer_core.step_choice import GroupChooser, LocalChooser
from deepinfer_native import Core

INTERVAL_ANY = 7
BUSY = [0.06, 0.02, 0.1, 0.0]


class Scripted:
    """A core that answers as told, and notes what it was asked for."""

    def __init__(self, size: int = 1, depth: int = 1, kind: EngineType = EngineType.NORMAL) -> None:
        self.config = SimpleNamespace(dp_size=size, depth=depth, engine_type=kind)
        self.asked: list[StepMode] = []
        self.unfinished = 1
        self.finds = 0
        self.now = {"point": 0, "want": False, "has_running": True, "has_unfinished": True, "burst_reached": False}
        self.d = 1

    def probe(self) -> Any:
        return SimpleNamespace(**self.now, decode_since_prefill=self.d)

    def schedule(self, mode: StepMode) -> Any:
        self.asked.append(mode)
        n = self.finds if mode == StepMode.TRY_PREFILL else 1
        return SimpleNamespace(num_reqs=n, kind=0, is_last_chunk=SimpleNamespace(any=lambda: False))


class Others:
    """A reducer whose other ranks say what the test says: lists of the first three values."""

    rank = 0

    def __init__(self, size: int = 2, *answers: list[int]) -> None:
        self.size, self.answers = size, list(answers)
        self.sent: list[list[int]] = []

    def start_max(self, values: Any) -> Any:
        self.sent.append(list(values))
        other = self.answers.pop(0) if self.answers else [1, 0, 1]
        answer = [max(a, b) for a, b in zip(values, other, strict=False)] + list(values[3:])
        return SimpleNamespace(wait=lambda: answer)


def chosen(now: dict[str, Any], *answers: list[int], finds: int = 1, kind: EngineType = EngineType.NORMAL) -> Any:
    """What a rank of two asks of its core in the second step, the first having shown that somebody decodes."""
    core, reducer = Scripted(2, kind=kind), Others(2)
    chooser = GroupChooser(reducer, core)
    core.finds = 1
    chooser.schedule(core)
    chooser.settle(core)
    core.asked.clear()
    core.now |= now
    core.finds, reducer.answers = finds, list(answers)
    chooser.schedule(core)
    return core.asked


TRY, DECODE, EMPTY = StepMode.TRY_PREFILL, StepMode.DECODE, StepMode.EMPTY_PREFILL
CASES: dict[str, tuple[dict[str, Any], list[list[int]], int, list[StepMode]]] = {
    "no point, no vote": ({"want": True}, [], 1, [DECODE]),
    "any: this rank wants": ({"point": 1, "want": True}, [[0, 1, 1], [0, 0, 0]], 1, [TRY]),
    "any: the other wants": ({"point": 1}, [[1, 0, 1], [1, 0, 0]], 1, [EMPTY]),
    "any: nobody wants": ({"point": 1}, [[0, 1, 1]], 1, [DECODE]),
    "all: both want": ({"point": 2, "want": True}, [[1, 0, 1], [1, 0, 0]], 1, [TRY]),
    "all: the other does not": ({"point": 2, "want": True}, [[0, 1, 1]], 1, [DECODE]),
    "all: this one does not": ({"point": 2}, [[1, 0, 1]], 1, [DECODE]),
    "nobody found one": ({"point": 1, "want": True}, [[1, 0, 1], [0, 0, 0]], 0, [TRY, DECODE]),
    "the other found one": ({"point": 1, "want": True}, [[1, 0, 1], [1, 0, 0]], 0, [TRY, EMPTY]),
    "burst, and one decodes": (
        {"point": 2, "want": True, "burst_reached": True, "has_running": False},
        [[1, 0, 1]],
        1,
        [DECODE],
    ),
    "burst, and nobody decodes": (
        {"point": 2, "want": True, "burst_reached": True, "has_running": False},
        [[1, 0, 0], [1, 0, 0]],
        1,
        [TRY],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_vote_of_two_ranks_decides(case):
    now, answers, finds, expected = CASES[case]
    assert chosen(now, *answers, finds=finds) == expected


@pytest.mark.parametrize(
    ("kind", "finds", "expected"),
    [
        (EngineType.PROMPT, 1, [TRY]),
        (EngineType.PROMPT, 0, [TRY, EMPTY]),
        (EngineType.COMPLETION, 1, [DECODE]),
    ],
)
def test_engines_of_one_kind_of_step_do_not_vote(kind, finds, expected):
    assert chosen({"point": 1, "want": True}, finds=finds, kind=kind) == expected


def test_group_in_which_nobody_decodes_does_not_wait_for_a_point():
    core, reducer = Scripted(2), Others(2, [0, 0, 0], [0, 1, 0], [1, 0, 0])
    core.now |= {"has_running": False, "point": 0, "want": True}
    core.finds = 1
    GroupChooser(reducer, core).schedule(core)
    assert core.asked == [TRY]


def test_local_chooser_is_the_step_of_one_rank():
    core = Core(dp_config(1))
    core.submit([1, 2, 3], max_tokens=2)
    chooser = LocalChooser()
    outputs = chooser.schedule(core)
    assert (outputs.kind, outputs.num_reqs) == (StepKind.PREFILL, 1)
    assert chooser.settle(core)


def test_core_of_another_group_size_is_refused():
    with pytest.raises(ConfigError, match="dp_size is 3, the group has 2 ranks"):
        GroupChooser(Others(2), Scripted(3))


def test_step_without_a_settle_is_refused():
    core = Scripted(2)
    chooser = GroupChooser(Others(2), core)
    chooser.schedule(core)
    with pytest.raises(EngineError, match="step 2 of the group was scheduled before step 1 was settled"):
        chooser.schedule(core)
    chooser.settle(core)
    with pytest.raises(EngineError, match="no step of the group is open"):
        chooser.settle(core)


def test_ranks_that_count_different_steps_are_told_and_stay_broken():
    core = Scripted(2)
    reducer = Others(2)
    chooser = GroupChooser(reducer, core)
    reducer.start_max = lambda values: SimpleNamespace(wait=lambda: [1, 1, 1, values[3], values[4], 9, -1])
    with pytest.raises(GroupError) as caught:
        chooser.schedule(core)
    assert str(caught.value) == (
        "E_GROUP: rank 0 of 2 is out of step with its group\n"
        "  reason: votes 3 to 3 (this rank 3), steps 1 to 9 (this rank 0)\n"
        "  remedy: end all ranks and start them together, with the same settings"
    )
    with pytest.raises(GroupError):
        chooser.schedule(core)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(
    "config",
    [{}, {"depth": 2}, {"depth": 2, "num_draft": 2, "max_prefill_burst": 2}, {"num_blocks": 18, "depth": 2}],
    ids=["depth1", "depth2", "drafts_bursts", "small_pool"],
)
def test_random_traffic_keeps_all_ranks_in_step(size, config):
    def work(reducer: Any) -> Any:
        rank = Rank(reducer, 100 + reducer.rank, busy=BUSY[reducer.rank], **config)
        rank.run(400)
        return rank.trace

    traces = run_ranks(size, work)
    counts = check_group(traces, interval_any=INTERVAL_ANY, depth=config.get("depth", 1))
    assert counts["prefill"] > 0
    assert size == 1 or min(counts.values()) > 0, counts


def test_check_of_the_traces_catches_ranks_of_different_kinds():
    good = [(int(StepKind.DECODE), 1, 1, 1)] * 3
    bad = [*good[:2], (int(StepKind.PREFILL), 1, 0, 1)]
    with pytest.raises(AssertionError, match="step 3: kinds"):
        check_group([good, bad], interval_any=1, depth=1)


def test_rank_that_leaves_makes_the_others_fail():
    group = ThreadGroup(2, timeout_s=0.2)
    rank = Rank(group.rank(0), 1)
    rank.submit()
    with pytest.raises(GroupError, match="gone or late"):
        rank.step()
