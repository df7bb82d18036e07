"""PROMPT and COMPLETION engines (``spec/engine.md`` 1.3 rows 21-23, 1.4, 4.4), alone and joined."""

import inspect
import random

import numpy as np
import pytest
from native_driver import STOPS, VOCAB, Driver, Request, expected_output, require, small_config
from transfer_pair import Pair

from deepinfer_contracts import AbortStatus, EngineType, EventKind, FinishReason, SamplerOutput, StepKind, StepMode
from deepinfer_native import Core
from deepinfer_native.errors import (
    ArgumentError,
    CapacityError,
    ConfigurationError,
    NotFoundError,
    OrderError,
    StaleHandleError,
)
from deepinfer_native.request import ARRAYS, DEFAULTS, PAIRS


def submit_trace(driver, seed=0, count=9):
    """The same requests for any driver or pair: lengths below, at and above a block, some with a minimum length."""
    r = random.Random(seed)
    return [
        driver.submit(
            [r.randrange(VOCAB) for _ in range(r.choice([1, 4, 5, 17, 33]))],
            max_tokens=r.choice([1, 2, 12, 30]),
            min_tokens=r.choice([0, 0, 3]),
            stop=STOPS if r.random() < 0.7 else (),
        )
        for _ in range(count)
    ]


def small_receiver():
    return Driver(small_config(engine_type=EngineType.COMPLETION, stop_preempted=True, num_blocks=12))


def abort(driver, uid):
    return driver.core.abort([uid])[0]


# --- joined ------------------------------------------------------------------------------------------------------

CASES = {
    "plain": {},
    "pipelined": {"depth": 2},
    "drafts": {"num_draft": 2},
    "pipelined_drafts": {"depth": 2, "num_draft": 3},
    "drafts_not_sent": {"depth": 2, "num_draft": 2, "send_drafts": False},
    "chunks_share_a_step": {"depth": 2, "prompt": {"max_chunk": 8}},
    "pipelined_prompts": {"depth": 2, "prompt": {"max_chunk": 8, "depth": 2}},
    "few_rows": {"depth": 2, "completion": {"max_num_seqs": 1, "max_num_batched_tokens": 8}},
    "few_units": {"depth": 2, "completion": {"num_swa_slots": 3, "num_blocks": 40}, "prompt": {"num_swa_slots": 3}},
    "prefix_cache": {"depth": 2, "prompt": {"prefix_cache": True}, "completion": {"prefix_cache": True}},
    "varying_lengths": {"depth": 2, "num_draft": 3, "completion": {"verify_lengths": "confidence"}},
    "stream_ordered": {"depth": 2, "completion": {"stream_ordered_reuse": True}},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1])
def test_joined_engines_give_the_tokens_of_one_engine(case, seed):
    options = CASES[case]
    pair = Pair(**options)
    requests = submit_trace(pair, seed)
    pair.run()
    whole = Driver(small_config(num_draft=options.get("num_draft", 0), depth=options.get("depth", 1)))
    alone = submit_trace(whole, seed)
    whole.run()
    for request, other in zip(requests, alone, strict=True):
        assert pair.output(request.uid) == (other.output, other.reason), request.uid
        assert (other.output, other.reason) == expected_output(other, whole.config.max_model_len)
    kinds = {kind for _, kind, _ in pair.sender.steps}, {kind for _, kind, _ in pair.receiver.steps}
    assert kinds == ({StepKind.PREFILL}, {StepKind.DECODE})
    ended = [r.reason for r, _ in pair.requests.values()]
    assert len(pair.sent) == sum(len(r.output) == 1 and r.prefilled for r, _ in pair.requests.values())
    assert all(reason in (FinishReason.LENGTH, FinishReason.STOP) for reason in ended)


def test_drafts_of_the_prompt_are_verified_in_the_first_step():
    pair = Pair(num_draft=3)
    submit_trace(pair, 2, 20)
    pair.run()
    with_drafts = pair.receiver.core.stats()
    other = Pair(num_draft=3, send_drafts=False)
    submit_trace(other, 2, 20)
    other.run()
    assert with_drafts.tokens_accepted > other.receiver.core.stats().tokens_accepted


def test_copy_that_forgets_a_block_is_caught():
    pair = Pair()
    request = pair.submit(list(range(30)), max_tokens=5, stop=())
    while not request.prefilled:
        pair.sender.step()
    pair.reserve(request.uid)
    h = pair.copy(request.uid)
    block = int(pair.reserved[request.uid].block_ids[3])
    pair.receiver.device.main[1][4 * block : 4 * block + 4] = 0
    pair.inject(request.uid, h)
    with pytest.raises(AssertionError, match="reads wrong keys"):
        pair.receiver.run()


class Storm:
    """Both engines under random steps, partial transfers and aborts on either side, in every phase."""

    def __init__(self, seed, **options):
        self.random = random.Random(seed)
        self.pair = Pair(**options)
        self.landing = []  # copied, not injected: (uid, hand-off)
        self.disturbed = set()
        self.phases = set()

    def phase(self, uid):
        if uid in self.pair.sent:
            request = self.pair.sent[uid]
            if request.reason != FinishReason.NONE:
                return "ended"
            return "reserved" if request.first is None else "injected" if not request.output else "running"
        request = self.pair.requests[uid][0]
        if request.reason != FinishReason.NONE:
            return "ended"
        return "handed" if request.prefilled else "prompt"

    def abort(self):
        live = [uid for uid in self.pair.requests if self.phase(uid) != "ended"]
        if not live:
            return
        uid = self.random.choice(live)
        on_receiver = uid in self.pair.sent and self.random.random() < 0.8
        self.phases.add((self.phase(uid), on_receiver))
        driver, name = (self.pair.receiver, self.pair.sent[uid].uid) if on_receiver else (self.pair.sender, uid)
        if abort(driver, name) == AbortStatus.ACCEPTED:
            self.disturbed.add(uid)

    def transfers(self):
        pair, r = self.pair, self.random
        for uid in pair.handed():
            if r.random() < 0.5:
                continue
            if pair.reserve(uid) is None:
                break
            self.landing.append((uid, pair.copy(uid)))
        for uid, h in list(self.landing):
            if r.random() < 0.5:
                continue
            self.landing.remove((uid, h))
            pair.sender.core.acknowledge(uid)
            if r.random() < 0.1:  # the sender gives up
                pair.receiver.core.acknowledge(pair.sent[uid].uid)
                self.disturbed.add(uid)
            else:
                pair.inject(uid, h)
            with pytest.raises(StaleHandleError):
                pair.receiver.core.inject(pair.reserved[uid].handle, 1)

    def act(self):
        pair, r = self.pair, self.random
        choice = r.random()
        if choice < 0.25 and len(pair.requests) < 200:
            submit_trace(pair, r.randrange(10**6), 1)
        elif choice < 0.5:
            pair.sender.step()
        elif choice < 0.6:
            self.transfers()
        elif choice < 0.66:
            self.abort()
        elif choice < 0.7:
            r.choice([pair.sender, pair.receiver]).poll()
        else:
            pair.receiver.step()
        pair.sender.core.check()
        pair.receiver.core.check()

    def run(self, actions):
        for _ in range(actions):
            self.act()
        for _ in range(3000):
            if not self.pair.sender.core.unfinished and not self.pair.receiver.core.unfinished:
                break
            self.pair.sender.step()
            self.transfers()
            self.pair.receiver.step()
        self.pair.run()
        for uid, (request, _) in self.pair.requests.items():
            tokens, reason = expected_output(request, self.pair.sender.config.max_model_len)
            output, ended = self.pair.output(uid)
            require(ended != FinishReason.NONE, "no end of", uid)
            if uid in self.disturbed or ended == FinishReason.NO_RESOURCE:
                require(output == tokens[: len(output)], "tokens of", uid, output, tokens)
            else:
                require((output, ended) == (tokens, reason), "run of", uid, output, tokens, ended, reason)
        return self


STORMS = {
    "depth1": {"completion": {"num_blocks": 40}},
    "depth2_drafts": {"depth": 2, "num_draft": 2, "prompt": {"max_chunk": 8}, "completion": {"num_blocks": 30}},
    "prefix_cache": {"depth": 2, "prompt": {"prefix_cache": True, "num_blocks": 20}, "completion": {"num_blocks": 30}},
    "varying_lengths": {"depth": 2, "num_draft": 2, "completion": {"verify_lengths": "confidence"}},
    "small": {"depth": 2, "prompt": {"num_blocks": 16, "depth": 2}, "completion": {"num_blocks": 14}},
}


@pytest.mark.parametrize("case", STORMS)
@pytest.mark.parametrize("seed", [0, 1])
def test_random_aborts_and_transfers_leave_nothing_behind(case, seed):
    Storm(seed, **STORMS[case]).run(900)


def test_random_aborts_reach_every_phase_of_both_sides():
    phases = set()
    for seed in range(4):
        phases |= Storm(seed, depth=2, completion={"num_blocks": 30, "max_num_seqs": 2}).run(900).phases
    expected = {("prompt", False), ("handed", False), ("reserved", True), ("injected", True), ("running", True)}
    assert expected <= phases


@pytest.mark.slow
@pytest.mark.parametrize("case", STORMS)
@pytest.mark.parametrize("seed", range(2, 10))
def test_random_aborts_and_transfers_leave_nothing_behind_for_long(case, seed):
    Storm(seed, **STORMS[case]).run(6000)


# --- the sender --------------------------------------------------------------------------------------------------


def prefilled(pair, prompt=(1, 2, 3, 4, 5), **parameters):
    request = pair.submit(list(prompt), **{"max_tokens": 9, "stop": (), **parameters})
    while not request.prefilled:
        pair.sender.step()
    return request


def test_prompt_engine_offers_what_a_transfer_needs():
    pair = Pair(num_draft=2)
    request = pair.submit([1, 2, 3, 4, 5], max_tokens=9, stop=())
    driver = pair.sender
    driver.schedule()
    assert driver.core.stats().draft.held == 0
    driver.commit()
    with pytest.raises(OrderError, match="must be reported done first"):
        driver.core.handoff(request.uid)
    driver.done(1)
    h = driver.core.handoff(request.uid)
    assert (h.length, h.first_token, len(h.block_ids), len(h.drafts)) == (5, request.output[0], 2, 2)
    assert not h.is_ended
    stats = driver.core.stats()
    assert (stats.handoff, stats.running, stats.main.held, stats.state.held) == (1, 0, 2, 1)


def test_prompt_event_is_prefilled_and_the_end_follows_the_acknowledgement():
    driver = Pair().sender
    request = driver.submit([1, 2, 3], max_tokens=5, stop=())
    driver.schedule()
    events = driver.commit()
    assert (events.kind.tolist(), events.flags.tolist()) == ([EventKind.PREFILLED], [0])
    assert (events.token_id.tolist(), events.output_index.tolist()) == (request.output, [1])
    driver.core.acknowledge(request.uid)
    driver.poll()
    assert (request.reason, request.final_index) == (FinishReason.LENGTH, 1)


def test_first_token_that_ends_the_request_is_no_handoff():
    pair = Pair()
    request = pair.submit([1, 2, 3], max_tokens=1, stop=())
    pair.sender.run()
    assert (request.prefilled, request.reason, len(request.output)) == (False, FinishReason.LENGTH, 1)


def test_abort_in_a_handoff_waits_for_the_acknowledgement():
    pair = Pair()
    request = prefilled(pair)
    driver = pair.sender
    assert abort(driver, request.uid) == AbortStatus.ACCEPTED
    driver.poll()
    assert request.reason == FinishReason.NONE
    assert driver.core.stats().main.held == 2
    assert driver.core.handoff(request.uid).is_ended
    driver.core.acknowledge(request.uid)
    driver.poll()
    assert request.reason == FinishReason.ABORT
    Pair.require_all_free(driver)
    with pytest.raises(NotFoundError, match="is not in a transfer"):
        driver.core.acknowledge(request.uid)


def test_chunked_prompts_share_a_step():
    driver = Driver(small_config(engine_type=EngineType.PROMPT, max_chunk=8))
    for n in range(3):
        driver.submit([n] * 20, max_tokens=2, stop=())
    driver.step()
    assert [[q for _, q in rows] for _, _, rows in driver.steps] == [[8, 8, 8]]


def test_waiting_transfers_do_not_take_the_rows_of_new_prompts():
    pair = Pair(prompt={"max_num_seqs": 1, "max_num_batched_tokens": 8})
    first, second = prefilled(pair), prefilled(pair)
    assert pair.sender.core.stats().handoff == 2
    assert pair.handed() == [first.uid, second.uid]


@pytest.mark.parametrize(
    ("kind", "modes"),
    [(EngineType.PROMPT, [StepMode.DECODE]), (EngineType.COMPLETION, [StepMode.TRY_PREFILL, StepMode.EMPTY_PREFILL])],
)
def test_step_of_the_other_kind_is_refused(kind, modes):
    core = Driver(small_config(engine_type=kind, stop_preempted=True)).core
    for mode in modes:
        with pytest.raises(ArgumentError, match="steps only"):
            core.schedule(mode)


# --- the receiver ------------------------------------------------------------------------------------------------


def test_completion_engine_that_would_recompute_is_refused():
    with pytest.raises(ConfigurationError) as caught:
        small_config(engine_type=EngineType.COMPLETION)
    assert str(caught.value) == (
        "stop_preempted: is 0, the bound is 1 with engine_type 2 (COMPLETION): "
        "it cannot compute a preempted request again"
    )


def test_reservation_without_room_changes_nothing_and_says_what_is_short():
    driver = small_receiver()
    driver.core.reserve([1] * 30, max_tokens=5)
    before = driver.core.stats()
    with pytest.raises(CapacityError, match="main: 5 blocks are needed now, 3 are free"):
        driver.core.reserve([1] * 17, max_tokens=5)
    assert driver.core.stats() == before


def test_reservation_that_never_fits_is_an_argument_error():
    core = small_receiver().core
    with pytest.raises(ArgumentError, match="60 tokens need 15 blocks"):
        core.reserve([1] * 60, max_tokens=5)


def test_reservation_of_the_last_slot_is_refused_without_a_leak():
    core = Driver(small_config(engine_type=EngineType.COMPLETION, stop_preempted=True, num_state_slots=2)).core
    core.reserve([1, 2], max_tokens=5)
    with pytest.raises(CapacityError, match="state: no slot of 1 is free"):
        core.reserve([1, 2], max_tokens=5)
    assert core.stats().main.held == 1


def test_cancelled_reservation_waits_for_the_sender():
    pair = Pair()
    request = prefilled(pair)
    reservation = pair.reserve(request.uid)
    driver, other = pair.receiver, pair.sent[request.uid]
    assert abort(driver, other.uid) == AbortStatus.ACCEPTED
    driver.poll()
    assert (other.reason, driver.core.stats().main.held) == (FinishReason.NONE, 2)
    driver.core.acknowledge(other.uid)
    driver.poll()
    assert other.reason == FinishReason.ABORT
    with pytest.raises(StaleHandleError):
        driver.core.inject(reservation.handle, 1)
    Pair.require_all_free(driver)


def test_inject_of_an_aborted_reservation_is_its_acknowledgement():
    pair = Pair()
    request = prefilled(pair)
    reservation = pair.reserve(request.uid)
    driver, other = pair.receiver, pair.sent[request.uid]
    abort(driver, other.uid)
    driver.core.inject(reservation.handle, 1)
    driver.poll()
    assert (other.reason, other.output) == (FinishReason.ABORT, [])
    Pair.require_all_free(driver)


def test_injected_request_waits_for_a_row_and_an_abort_then_frees_it_at_once():
    pair = Pair(completion={"max_num_seqs": 1, "max_num_batched_tokens": 8})
    first, second = prefilled(pair), prefilled(pair)
    for request in (first, second):
        pair.transfer(request.uid)
    pair.receiver.step()
    stats = pair.receiver.core.stats()
    assert (stats.running, stats.prefill, stats.main.held) == (1, 1, 4)
    other = pair.sent[second.uid]
    abort(pair.receiver, other.uid)
    pair.receiver.poll()
    assert (other.reason, len(other.output)) == (FinishReason.ABORT, 1)
    assert pair.receiver.core.stats().main.held == 2


def test_injected_token_that_ends_the_request_needs_no_step():
    driver = small_receiver()
    reservation = driver.core.reserve([1, 2, 3], max_tokens=5, stop_ids=[9])
    driver.core.inject(reservation.handle, 9)
    events = driver.core.poll_events()
    assert events.kind.tolist() == [EventKind.TOKEN, EventKind.FINISH]
    assert (events.token_id.tolist(), events.output_index.tolist()) == ([9, -1], [1, 1])
    assert events.finish_reason.tolist() == [FinishReason.NONE, FinishReason.STOP]
    Pair.require_all_free(driver)


def test_events_of_an_injected_request_begin_with_its_first_token():
    driver = small_receiver()
    reservation = driver.core.reserve([1, 2, 3], max_tokens=5)
    driver.core.inject(reservation.handle, 8, -0.5)
    assert driver.core.poll_events().count == 0
    o = driver.core.schedule(StepMode.DECODE)
    assert (o.cached.tolist(), o.full_len.tolist(), o.zero_slots.size) == ([3], [4], 0)
    assert driver.core.pack(o.step_id).input_ids.tolist() == [8]
    driver.follower.add(Request(reservation.uid, [1, 2, 3, 8], 5))
    sampled = Driver.sample(driver, StepKind.DECODE, [(reservation.uid, 0, 1, 0, 0, -1)])
    events = driver.core.commit(o.step_id, sampled)
    assert (events.output_index.tolist(), events.token_id.tolist()[0]) == ([1, 2], 8)
    assert events.logprob.tolist() == [-0.5, -0.5]


def test_first_step_of_an_injected_request_names_all_of_its_blocks():
    """A backend that keeps tables by row slot learns them from the new entries of that step only."""
    core = Driver(small_config(engine_type=EngineType.COMPLETION, stop_preempted=True, csr_tables=False)).core
    reservation = core.reserve([1] * 11, max_tokens=5)
    core.inject(reservation.handle, 8)
    o = core.schedule(StepMode.DECODE)
    row = int(o.row_slot[0])
    assert o.bt_delta.tolist() == [[row, i, b] for i, b in enumerate(reservation.block_ids.tolist())]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"first_token": VOCAB}, "first_token"),
        ({"first_token": 1, "logprob": 0.5}, "logprob"),
        ({"first_token": 1, "logprob": float("nan")}, "logprob"),
        ({"first_token": 1, "drafts": [1, 2, 3]}, "drafts"),
        ({"first_token": 1, "drafts": [1, VOCAB]}, "drafts"),
    ],
)
def test_inject_of_values_out_of_range_is_refused_and_keeps_the_reservation(arguments, field):
    core = Driver(small_config(engine_type=EngineType.COMPLETION, stop_preempted=True, num_draft=2)).core
    reservation = core.reserve([1, 2, 3], max_tokens=5)
    with pytest.raises(ArgumentError) as caught:
        core.inject(reservation.handle, **arguments)
    assert caught.value.field == field
    core.inject(reservation.handle, 1, drafts=[1, 2])


@pytest.mark.parametrize("handle", [0, 1, 1 << 32, (1 << 32) | 7, (1 << 64) - 1])
def test_handle_that_was_never_made_is_stale(handle):
    core = small_receiver().core
    with pytest.raises(StaleHandleError):
        core.inject(handle, 1)


def test_calls_of_another_engine_type_are_refused():
    normal, prompt, completion = (
        Driver(small_config(engine_type=kind, stop_preempted=True)).core for kind in EngineType
    )
    with pytest.raises(ArgumentError, match="computes no prompt"):
        completion.submit([1], max_tokens=1)
    for core in (normal, prompt):
        with pytest.raises(ArgumentError, match="engine_type"):
            core.reserve([1], max_tokens=1)
        with pytest.raises(ArgumentError, match="engine_type"):
            core.inject(1 << 32 | 1, 1)
    for core in (normal, completion):
        with pytest.raises(ArgumentError, match="engine_type"):
            core.handoff(1)
    with pytest.raises(NotFoundError):
        normal.acknowledge(1)
    with pytest.raises(ArgumentError, match="no parameter of a request: colour"):
        completion.reserve([1], max_tokens=1, colour=3)


def test_reserve_has_the_parameters_and_defaults_of_submit():
    given = {
        name: p.default
        for name, p in inspect.signature(Core.submit).parameters.items()
        if name not in ("self", "prompt_ids", "max_tokens")
    }
    assert given == {**DEFAULTS, **dict.fromkeys((*ARRAYS, *PAIRS), ())}


def test_stop_string_in_the_first_token_waits_for_the_acknowledgement():
    pair = Pair()
    request = prefilled(pair)
    driver = pair.sender
    driver.core.finish(request.uid, FinishReason.STOP, 0)
    driver.poll()
    assert request.reason == FinishReason.NONE
    driver.core.acknowledge(request.uid)
    driver.poll()
    assert (request.reason, request.final_index) == (FinishReason.STOP, 0)
    Pair.require_all_free(driver)


def test_end_that_drops_the_first_token_says_nothing_of_it():
    driver = small_receiver()
    reservation = driver.core.reserve([1, 2, 3], max_tokens=5)
    driver.core.inject(reservation.handle, 8)
    driver.core.finish(reservation.uid, FinishReason.STOP, 0)
    events = driver.core.poll_events()
    assert (events.kind.tolist(), events.output_index.tolist()) == ([EventKind.FINISH], [0])
    Pair.require_all_free(driver)


def test_core_that_is_closed_in_the_middle_of_transfers_gives_its_memory_back():
    pair = Pair()
    for _ in range(3):
        request = prefilled(pair)
        pair.reserve(request.uid)
    pair.receiver.core.close()
    pair.sender.core.close()
    with pytest.raises(StaleHandleError, match="closed"):
        pair.receiver.core.inject(1, 1)


def test_abort_of_a_transfer_twice_counts_once():
    core = Core(small_config(engine_type=EngineType.COMPLETION, stop_preempted=True))
    given = core.reserve([1, 2, 3], max_tokens=4)
    for _ in range(2):
        core.abort([given.uid])
        core.probe()
    assert core.stats().aborts == 1
    core.acknowledge(given.uid)
    assert core.unfinished == 0


def test_table_of_a_request_that_is_held_at_once_comes_with_its_first_step():
    # A call that schedules nothing is no step, so that a backend that keeps tables by row slot does not see it.
    config = small_config(
        engine_type=EngineType.COMPLETION, stop_preempted=True, depth=2, num_blocks=5, max_model_len=9, csr_tables=False
    )
    core = Core(config)
    ending, held = core.reserve(list(range(8)), max_tokens=2), core.reserve(list(range(4)), max_tokens=4)
    core.inject(ending.handle, 5)
    first = core.schedule_local().step_id  # the last block goes to the request that certainly ends with this step
    core.inject(held.handle, 6)
    o = core.schedule_local()
    assert (o.num_reqs, o.held_uid.tolist(), o.bt_delta.tolist()) == (0, [held.uid], [])
    one = {"sampled_ids": np.int32, "sampled_logprob": np.float32, "row_status": np.int8}
    core.commit(first, SamplerOutput(**{name: np.zeros(1, dtype) for name, dtype in one.items()}))
    core.step_done(first)
    o = core.schedule_local()
    assert o.seq_uid.tolist() == [held.uid]
    row, ids = int(o.row_slot[0]), held.block_ids.tolist()
    assert o.bt_delta[:, :2].tolist() == [[row, 0], [row, 1]]
    assert o.bt_delta[:1, 2].tolist() == ids


@pytest.mark.parametrize("is_declared", [False, True])
def test_units_of_a_step_in_flight_are_not_reserved_whatever_the_queue_orders(is_declared):
    # The sender's copies are not on the receiver's queue.
    config = small_config(
        engine_type=EngineType.COMPLETION, stop_preempted=True, num_swa_slots=2, stream_ordered_reuse=is_declared
    )
    core = Core(config)
    running = core.reserve([1, 2, 3], max_tokens=4)
    core.inject(running.handle, 5)
    step = core.schedule_local().step_id
    core.abort([running.uid])
    with pytest.raises(CapacityError, match="swa"):
        core.reserve([1, 2, 3], max_tokens=4)
    core.step_done(step)
    assert core.reserve([1, 2, 3], max_tokens=4).swa_slot == running.swa_slot
    core.check()
