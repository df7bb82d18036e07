"""What counts in a segment, on stamps that are written down."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from deepinfer_bench.disturbances import GC, Disturbances
from deepinfer_bench.segment import REASONS, Segment
from deepinfer_bench.step_log import PHASES, Stamp, StepLog
from deepinfer_core.pipeline import PhaseTimes

MS = 1_000_000


def stamps(ends_ms: Sequence[float], *, kinds: str = "", requests: Sequence[int] = (), graphs: Sequence[int] = ()):
    """Decode steps of two requests with three rows and two tokens each, the first stamp as the opening one."""
    found = []
    for i, end in enumerate(ends_ms):
        kind = {"p": "prefill", "d": "decode"}[kinds[i]] if kinds else "decode"
        phases = tuple(i * (1000 * (place + 1)) for place in range(len(PHASES)))
        found.append(
            Stamp(
                round(end * MS),
                kind,
                requests[i] if requests else 2,
                6,
                4 * i,
                phases,
                graphs[i] if graphs else 0,
            )
        )
    return found


def test_intervals_lie_between_successive_ends_and_the_first_stamp_only_opens():
    segment = Segment.of("decode", stamps([5, 7, 10, 11]), Disturbances())
    assert [interval.ns / MS for interval in segment.intervals] == [2, 3, 1]
    assert (len(segment.kept), segment.tokens, segment.rows) == (3, 12, 18)
    assert segment.seconds == pytest.approx(0.006)


def test_interval_that_meets_a_collection_is_dropped_and_counted_by_its_reason():
    events = Disturbances()
    events.note(GC, 8 * MS, 9 * MS)
    segment = Segment.of("decode", stamps([5, 7, 10, 11]), events)
    assert segment.dropped == {**dict.fromkeys(REASONS, 0), "gc": 1}
    record = segment.as_record()
    assert (record["steps"], record["kept"]) == (3, 2)
    assert (record["seconds"], record["seconds_dropped"]) == pytest.approx((0.003, 0.003))
    assert record["output_tokens"] == 8


def test_every_reason_is_counted_and_flush_and_shuffle_are_a_measured_zero():
    events = Disturbances()
    events.note(GC, 1, 2)
    found = stamps([0, 1, 2, 3, 4, 5], kinds="ddpddd", requests=[2, 2, 2, 1, 2, 2], graphs=[0, 0, 0, 0, 1, 1])
    segment = Segment.of("decode", found, events, 2)
    assert segment.dropped == {"gc": 1, "flush": 0, "shuffle": 0, "graph": 1, "other_kind": 1, "batch": 1}
    assert len(segment.kept) + sum(segment.dropped.values()) == len(segment.intervals) == 5


def test_kept_and_dropped_add_up_whatever_happens():
    events = Disturbances()
    for begin in range(0, 40, 7):
        events.note(GC, begin * MS, (begin + 1) * MS)
    segment = Segment.of("decode", stamps([0.5 + i for i in range(41)]), events)
    record = segment.as_record()
    assert record["kept"] + sum(record["dropped"].values()) == record["steps"] == 40
    assert record["seconds"] + record["seconds_dropped"] == pytest.approx(0.040)


def test_percentiles_are_linear_between_neighbours():
    ends = [0.0]
    for i in range(1, 102):
        ends.append(ends[-1] + i)
    step = Segment.of("decode", stamps(ends), Disturbances()).step_ms()
    assert step == pytest.approx({"p50": 51, "p90": 91, "p99": 100, "mean": 51, "min": 1, "max": 101})


def test_segment_in_which_nothing_counts_has_no_figures():
    segment = Segment.of("prefill", stamps([0, 1, 2]), Disturbances())
    assert segment.step_ms() == dict.fromkeys(("p50", "p90", "p99", "mean", "min", "max"))
    assert (segment.outside_model_share, segment.seconds) == (None, 0)


def test_phases_and_the_rest_add_up_to_the_step():
    segment = Segment.of("decode", stamps([0, 1, 2, 4]), Disturbances())
    split = segment.phase_us()
    assert split["schedule"] == pytest.approx(1)
    assert split["emit"] == pytest.approx(len(PHASES))
    assert sum(split.values()) == pytest.approx(4000 / 3)


def test_outside_share_leaves_out_model_sampler_and_waiting():
    segment = Segment.of("decode", stamps([0, 1, 2]), Disturbances())
    inside = sum(PHASES.index(name) + 1 for name in ("forward", "logits", "sample", "draft", "wait"))
    assert segment.outside_model_share == pytest.approx(1 - inside / 1000)


def test_joined_segments_have_the_intervals_of_both():
    one, two = (Segment.of("decode", stamps(ends), Disturbances()) for ends in ([0, 1], [9, 11, 12]))
    assert [interval.ns // MS for interval in one.joined(two).intervals] == [1, 2, 1]


def test_log_stamps_each_step_with_what_was_done_by_then():
    clock, times = iter(range(100, 1000, 100)), PhaseTimes()
    outputs = [[1], [1, 2]]
    log = StepLog(lambda: next(clock), times, lambda: 7)
    log.begin(outputs)
    times.forward = 50
    outputs[0].append(3)
    log.step("decode", 2, 6, 123.0)
    first, second = log.take()
    assert (first.ns, first.kind, first.tokens) == (100, "", 3)
    assert (second.ns, second.kind, second.requests, second.rows, second.tokens) == (200, "decode", 2, 6, 4)
    assert second.phases[PHASES.index("forward")] == 50
    assert second.graphs == 7
    assert log.stamps == [second]  # it begins what comes next


def test_phases_are_all_that_the_engine_times():
    assert {*PHASES} == {*PhaseTimes().as_record()} - {"steps", "overlapped_steps", "prefill_tokens", "decode_tokens"}
