"""Events beside the steps, on a clock that a test turns."""

from __future__ import annotations

import gc

import pytest

from deepinfer_bench.disturbances import FLUSH, GC, SHUFFLE, Collections, Disturbance, Disturbances


class Ticking:
    """Each reading is 10 ns after the one before."""

    def __init__(self):
        self.now = 0

    def __call__(self):
        self.now += 10
        return self.now


@pytest.fixture(autouse=True)
def automatic_collection():
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def test_interval_meets_an_event_that_shares_time_with_it():
    events = Disturbances()
    events.note(GC, 100, 120)
    events.note(FLUSH, 300, 310)
    met = [events.meeting(*span) for span in ((0, 100), (90, 101), (105, 110), (119, 400), (120, 300), (50, 500))]
    assert met == [None, GC, GC, GC, None, GC]
    assert events.meeting(305, 400) == FLUSH


def test_event_of_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match="'lunch' is none of gc, flush, shuffle"):
        Disturbances().note("lunch", 0, 1)


def test_what_flushes_or_shuffles_can_note_it():
    events = Disturbances()
    events.note(SHUFFLE, 5, 6)
    assert events.events == [Disturbance(SHUFFLE, 5, 6)]


def test_collection_is_noted_with_its_begin_and_end():
    events = Disturbances()
    with Collections(events, Ticking()):
        gc.collect()
    assert events.events == [Disturbance(GC, 10, 20)]


def test_automatic_collection_is_off_inside_and_as_before_afterwards():
    with Collections(Disturbances(), Ticking(), every=5):
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    with Collections(Disturbances(), Ticking(), every=5):
        pass
    assert not gc.isenabled()


def test_garbage_is_collected_after_every_so_many_steps():
    events = Disturbances()
    with Collections(events, Ticking(), every=3) as collections:
        for _ in range(7):
            collections.stepped()
    assert [event.kind for event in events.events] == [GC, GC]


def test_interpreters_own_thresholds_are_left_alone():
    events = Disturbances()
    with Collections(events, Ticking(), every=0) as collections:
        assert gc.isenabled()
        held = [events for _ in range(10)]
        for _ in range(100):
            collections.stepped()
        gc.collect(0)
    assert len(held) == 10
    assert events.events
    assert collections.policy.startswith("the interpreter's own, thresholds ")


def test_nothing_is_heard_afterwards():
    events = Disturbances()
    with Collections(events, Ticking()):
        pass
    gc.collect()
    assert events.events == []
    assert not [hear for hear in gc.callbacks if getattr(hear, "__func__", None) is Collections._hear]
