"""What only some requests ask of the sampler: packed as the reference says, through every way into a step."""

import numpy as np
import pytest
from native_driver import VOCAB, Driver, small_config
from wishes_driver import WishesDriver

from deepinfer_contracts import StepKind
from deepinfer_native import Core
from deepinfer_native.errors import ArgumentError
from deepinfer_native.reference_sampler import Wishes

PENALISED = Wishes(is_penalised=True)
EVERYTHING = Wishes(True, ((3, 1.5), (60, -100.0)), 4, True, True)


def random_wishes(rng):
    return Wishes(
        bool(rng.integers(2)),
        tuple((int(t), float(v)) for t, v in zip(rng.integers(0, VOCAB, 3), rng.integers(-100, 101, 3), strict=True))[
            : int(rng.integers(4))
        ],
        int(rng.integers(3)),
        bool(rng.integers(2)),
        bool(rng.integers(2)),
    )


CASES = {
    "depth_1": {"depth": 1},
    "depth_2": {"depth": 2},
    "drafts": {"depth": 2, "num_draft": 3},
    "small_pool": {"depth": 2, "num_draft": 1, "num_blocks": 20},
    "prefix": {"depth": 2, "prefix_cache": True},
    "prefix_drafts": {"depth": 2, "prefix_cache": True, "block_size": 2, "num_blocks": 70, "num_draft": 1},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chunk", [3, 32])
def test_sampler_inputs_equal_the_reference_through_forks_and_preemption(case, chunk):
    driver = WishesDriver(small_config(max_chunk=chunk, chunk_align=2, **CASES[case]))
    rng = np.random.default_rng(17 * chunk + len(case))
    live = []
    for n in range(200):
        if n < 150 and len(live) < 6:
            prompt = (np.arange(rng.integers(1, 34)) * 5 + n % 2) % VOCAB
            live.append(driver.ask(prompt.tolist(), random_wishes(rng), max_tokens=int(rng.integers(1, 16))))
            if rng.integers(3) == 0:
                live.append(driver.fork(live[-1], seed=n, at_prompt=bool(rng.integers(2))))
        driver.step()
        live = [r for r in live if not r.reason]
    driver.run(check=True).require_expected()
    driver.require_prompts()
    assert driver.with_history > 5
    assert (driver.core.stats().preemptions > 0) == (case == "small_pool")


def test_history_comes_with_the_first_sample_only():
    driver = WishesDriver(small_config(max_chunk=4))
    request = driver.ask(list(range(10)), PENALISED, max_tokens=4, stop=())
    seen = []
    while driver.core.unfinished:
        o = driver.schedule()
        inputs = driver.pack_sampler(o)
        seen.append(None if inputs.history_ids is None else inputs.history_ids.tolist())
        driver.note(o, inputs)
        driver.retire()
    assert seen == [None, None, list(range(10)), None, None, None]
    assert len(request.output) == 4


def test_history_after_preemption_holds_the_output_too():
    driver = WishesDriver(small_config(num_blocks=12, depth=1, max_num_seqs=2, prefill_watermark=1.0))
    requests = [driver.ask([n] * 9, PENALISED, max_tokens=24, stop=()) for n in (1, 2)]
    outputs = []
    while driver.core.unfinished:
        o = driver.schedule()
        if not o.num_reqs:
            driver.poll()
            continue
        inputs = driver.pack_sampler(o)
        if inputs.history_outputs is not None:
            outputs += [n for n in inputs.history_outputs.tolist() if n]
        driver.note(o, inputs)
        driver.retire()
    assert driver.core.stats().preemptions > 0
    assert len(outputs) == driver.core.stats().preemptions
    assert all(len(r.output) == 24 for r in requests)


def test_a_prefix_hit_is_part_of_the_history():
    driver = WishesDriver(small_config(prefix_cache=True))
    prompt = list(range(30))
    driver.ask(prompt, PENALISED, max_tokens=1, stop=())
    driver.run()
    driver.ask(prompt, PENALISED, max_tokens=1, stop=())
    o = driver.schedule()
    assert o.hit_tokens.tolist() != [0]
    assert driver.core.pack_sampler(o.step_id).history_ids.tolist() == prompt


def test_packing_a_step_again_gives_the_same_fields():
    driver = WishesDriver(small_config())
    driver.ask([1, 2, 3], EVERYTHING, max_tokens=3, stop=())
    o = driver.schedule()
    names = ("history_ids", "bias", "bias_value", "top_logprobs", "logprobs_raw", "prompt_tokens")
    first = [getattr(driver.core.pack_sampler(o.step_id), n).tolist() for n in names]
    assert [getattr(driver.core.pack_sampler(o.step_id), n).tolist() for n in names] == first
    assert first[0] == [1, 2, 3]


def test_a_step_in_which_nobody_asks_has_none_of_the_fields():
    driver = Driver(small_config(num_draft=1))
    driver.submit([1, 2, 3], max_tokens=9, stop=())
    for _ in range(3):
        o = driver.schedule()
        s = driver.core.pack_sampler(o.step_id)
        fields = (s.history_ids, s.history_counts, s.bias, s.top_logprobs, s.logprobs_raw, s.prompt_counts)
        assert fields == (None,) * 6
        assert s.max_top_logprobs == 0
        assert s.row_slot.tolist() == [0]
        driver.retire()


def test_bias_is_repeated_for_every_draft_row():
    driver = WishesDriver(small_config(num_draft=2))
    driver.ask([1, 2], Wishes(), max_tokens=9, stop=())
    driver.ask([3, 4], Wishes(bias=((5, 1.0), (6, -2.5))), max_tokens=9, stop=())
    driver.step()
    o = driver.schedule()
    s = driver.core.pack_sampler(o.step_id)
    assert o.kind == StepKind.DECODE
    assert s.bias.tolist() == [[row, token] for row in (3, 4, 5) for token in (5, 6)]
    assert s.bias_value.tolist() == [1.0, -2.5] * 3


def test_prompt_logprobs_of_a_one_token_prompt_are_one_zero():
    driver = WishesDriver(small_config())
    request = driver.ask([9], Wishes(prompt_logprobs=True), max_tokens=2, stop=())
    driver.run()
    assert driver.prompts == {request.uid: [0.0]}


def test_a_chunk_without_prompt_logprobs_leaves_none_to_tell():
    driver = WishesDriver(small_config(max_chunk=4))
    for length in (9, 3):
        driver.ask(list(range(length)), Wishes(prompt_logprobs=True), max_tokens=2, stop=())
    o = driver.schedule()
    driver.core.pack_sampler(o.step_id)
    driver.asked.append({"prompt": None, "top": 0})  # as for a step that failed
    driver.retire()
    driver.fields.told.add(1)
    driver.run()
    assert sorted(driver.prompts) == [2]


@pytest.mark.parametrize(
    ("options", "field", "text"),
    [
        ({"bias": [(VOCAB, 1.0)]}, "bias", f"entry 0 is {VOCAB}, the range is 0 .. {VOCAB - 1}"),
        ({"bias": [(-1, 1.0)]}, "bias", "entry 0 is -1"),
        ({"bias": [(1, 100.5)]}, "bias", r"of token 1 is 100.5, the range is \[-100, 100\]"),
        ({"bias": [(1, float("nan"))]}, "bias", "of token 1 is nan"),
        ({"bias": [(1, 0.0)] * 1025}, "bias", "has 1025 entries, at most 1024"),
        ({"bias": [(1,)]}, "bias", "pairs are needed"),
        ({"bias": [(1, "x")]}, "bias", "pairs are needed"),
        ({"top_logprobs": 1001}, "top_logprobs", "is 1001, the range is 0 .. 1000"),
        ({"top_logprobs": -1}, "top_logprobs", "is -1"),
        ({"logprobs_raw": 2}, "logprobs_raw", "is 2, 0 or 1 is needed"),
        ({"prompt_logprobs": 3, "prefix_lookup": False}, "prompt_logprobs", "is 3, 0 or 1 is needed"),
        ({"prompt_logprobs": True}, "prompt_logprobs", "prefix_lookup 0 is needed"),
    ],
)
def test_submit_of_a_wrong_wish_is_refused_by_name(options, field, text):
    with Core(small_config()) as core:
        with pytest.raises(ArgumentError, match=text) as caught:
            core.submit([1, 2], max_tokens=2, **options)
        assert caught.value.field == field
        assert core.unfinished == 0


def test_prompt_logprobs_with_dropped_rows_are_refused():
    config = small_config(replay_mode="compact", replay_keep=9, num_blocks=64)
    wish = {"prompt_logprobs": True, "prefix_lookup": False}
    with Core(config) as core:
        with pytest.raises(ArgumentError, match="replay_keep 9"):
            core.submit([1, 2], max_tokens=2, **wish)
        core.submit([1, 2], max_tokens=2, replay_mode=0, **wish)


def test_replay_mode_beyond_that_of_the_inputs_is_refused():
    config = small_config(replay_mode="mask", replay_keep=9, num_blocks=64)
    with Core(config) as core:
        for mode in (2, 3, -2):
            with pytest.raises(ArgumentError, match=f"is {mode}, the range is -1 .. 1, the mode of the config"):
                core.submit([1, 2], max_tokens=2, replay_mode=mode)
        assert core.unfinished == 0


def test_prompt_logprobs_of_a_reservation_are_refused():
    config = small_config(engine_type=2, stop_preempted=True)
    with Core(config) as core, pytest.raises(ArgumentError, match="computed elsewhere"):
        core.reserve([1, 2], max_tokens=2, prompt_logprobs=True, prefix_lookup=False)


def test_injected_request_gets_its_history_with_its_first_step():
    config = small_config(engine_type=2, stop_preempted=True)
    with Core(config) as core:
        reservation = core.reserve([1, 2, 3], max_tokens=5, presence_penalty=1.0, bias=[(4, 2.0)])
        core.inject(reservation.handle, first_token=8)
        o = core.schedule_local()
        s = core.pack_sampler(o.step_id)
        assert s.history_ids.tolist() == [1, 2, 3, 8]
        assert s.history_outputs.tolist() == [1]
        assert s.bias.tolist() == [[0, 4]]
