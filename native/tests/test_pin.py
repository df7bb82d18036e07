"""External pins: units that outlive their request until the pin is given back (engine.md 3.6, 4.2, 4.6)."""

import pytest
from native_driver import Driver, small_config

from deepinfer_contracts import Pool, StepMode
from deepinfer_native.errors import ArgumentError, StaleHandleError

PROMPT = list(range(10))


def run_one(driver, **more):
    request = driver.submit(PROMPT, **{"max_tokens": 4, "stop": (), **more})
    o = driver.schedule()
    return request, o.bt_ids.tolist(), int(o.swa_slot[0]), int(o.state_slot[0])


def test_pinned_units_outlive_their_request():
    driver = Driver(small_config())
    _, blocks, swa, state = run_one(driver)
    pins = [
        driver.core.pin(Pool.MAIN, blocks[:2]),
        driver.core.pin(Pool.INDEX, blocks[:1]),
        driver.core.pin(Pool.SWA, [swa]),
        driver.core.pin(Pool.STATE, [state]),
    ]
    driver.retire()
    driver.run(check=True)  # the audit accepts pinned units
    stats = driver.core.stats()
    assert (stats.pins, stats.pinned_units) == (4, 5)
    assert (stats.main.held, stats.swa.held, stats.state.held) == (2, 1, 1)
    for seed in range(12):  # nobody else gets them
        driver.submit([seed] * 30, max_tokens=2, stop=())
    while driver.core.unfinished:
        o = driver.step()
        assert not set(o.bt_ids.tolist()) & set(blocks[:2])
        assert swa not in o.swa_slot.tolist()
        assert state not in o.state_slot.tolist()
    for pin in pins:
        driver.core.unpin(pin)
    driver.run()
    stats = driver.core.stats()
    assert (stats.pins, stats.pinned_units, stats.main.free) == (0, 0, stats.main.total)


def test_unpinned_units_wait_for_the_newest_launched_step():
    driver = Driver(small_config(depth=2))
    _, blocks, _, _ = run_one(driver, max_tokens=1)
    pin = driver.core.pin(Pool.MAIN, blocks)
    driver.retire()
    driver.poll()
    driver.submit([3] * 5, max_tokens=3, stop=())
    driver.schedule(StepMode.TRY_PREFILL)
    driver.core.unpin(pin)
    assert driver.core.stats().main.limbo == len(blocks)
    driver.retire()
    assert driver.core.stats().main.limbo == 0
    driver.run(check=True)


def test_handle_that_was_given_back_is_stale():
    driver = Driver(small_config())
    _, blocks, _, _ = run_one(driver)
    first = driver.core.pin(Pool.MAIN, blocks)
    driver.core.unpin(first)
    before = driver.core.stats()
    second = driver.core.pin(Pool.MAIN, blocks)
    assert (first & 0xFFFFFFFF, first >> 32) == (second & 0xFFFFFFFF, (second >> 32) - 1)
    driver.core.unpin(second)
    for handle in (first, second, 0, 2**64 - 1):
        with pytest.raises(StaleHandleError, match="was given back or never made"):
            driver.core.unpin(handle)
    assert driver.core.stats() == before
    driver.retire()
    driver.run(check=True)


def test_pin_of_what_nobody_holds_is_refused_and_changes_nothing():
    driver = Driver(small_config())
    _, blocks, _, _ = run_one(driver)
    before = driver.core.stats()
    free = next(b for b in range(1, 64) if b not in blocks)
    for pool, units, text in (
        (Pool.MAIN, [blocks[0], free], f"unit {free} of main is not held"),
        (Pool.MAIN, [0], "0 is outside the pool main of 63 units"),
        (Pool.SWA, [10], "10 is outside the pool swa of 9 units"),
        (Pool.DRAFT, [1], "4 has no units to pin"),
        (Pool.MAIN, [1.5], "a flat sequence of token ids is needed"),
    ):
        with pytest.raises(ArgumentError, match=text):
            driver.core.pin(pool, units)
    assert driver.core.stats() == before
    driver.retire()
    driver.run(check=True)


def test_pinned_prefix_is_shared_and_stays():
    driver = Driver(small_config(prefix_cache=True, num_blocks=12))
    driver.submit(list(range(20)), max_tokens=1, stop=())
    o = driver.schedule()
    pin = driver.core.pin(Pool.MAIN, o.bt_ids.tolist())
    driver.retire()
    for seed in range(3):
        driver.submit([seed] * 20, max_tokens=1, stop=())
    driver.run(check=True)
    driver.submit(list(range(20)), max_tokens=3, stop=())
    driver.run(check=True)
    driver.require_expected()
    assert driver.core.stats().prefix_hit_tokens == 8
    driver.core.unpin(pin)
    driver.run(check=True)


def test_core_with_pins_closes():
    driver = Driver(small_config())
    _, blocks, _, _ = run_one(driver)
    driver.core.pin(Pool.MAIN, blocks)
    driver.core.close()
    with pytest.raises(StaleHandleError):
        driver.core.stats()
