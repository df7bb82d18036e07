"""Settings of the prefix cache, and its reset (engine.md 2.1, 3.5)."""

import pytest
from native_driver import Driver, small_config
from test_prefix import prefix_config, prompt_of

from deepinfer_native.config import derive
from deepinfer_native.errors import ArgumentError, BusyError, ConfigurationError


def test_unused_prefix_cache_keeps_nothing():
    driver = Driver(small_config())
    for _ in range(2):
        driver.submit(prompt_of(20), max_tokens=4, stop=())
        driver.run()
    stats = driver.core.stats()
    assert (stats.main.cached, stats.prefix_queries, stats.prefix_hit_tokens) == (0, 0, 0)
    with pytest.raises(ConfigurationError, match="prefix_cache: is off"):
        driver.core.reset_prefix_cache()


def test_reset_in_mid_run_changes_no_token_and_forgets_everything():
    driver = Driver(prefix_config(depth=2))
    request = driver.submit(prompt_of(20), max_tokens=20, stop=())
    while len(request.output) < 10:
        driver.step()
    driver.core.reset_prefix_cache()
    driver.core.check()
    driver.run(check=True)
    driver.require_expected()
    # What was computed before the reset is not offered after it.
    assert driver.core.stats().main.cached == 0
    driver.submit(prompt_of(20), max_tokens=1, stop=())
    driver.run()
    driver.submit(prompt_of(20), max_tokens=1, stop=())
    driver.run()
    assert driver.core.stats().prefix_hit_tokens == 8


def test_reset_waits_for_shared_blocks():
    driver = Driver(prefix_config())
    driver.submit(prompt_of(20), max_tokens=1, stop=())
    driver.run()
    for _ in range(2):
        driver.submit(prompt_of(20), max_tokens=9, stop=())
    driver.step()
    before = driver.core.stats()
    with pytest.raises(BusyError, match="has 2 holders; reset when they have ended"):
        driver.core.reset_prefix_cache()
    assert driver.core.stats() == before
    driver.run()
    driver.core.reset_prefix_cache(7)
    assert driver.core.stats().main.free == driver.core.stats().main.total


def test_drawn_key_and_given_key_hit_alike():
    for key in (None, b"0123456789abcdef"):
        driver = Driver(prefix_config(prefix_key=key, prefix_salt=2**64 - 1))
        for _ in range(2):
            driver.submit(prompt_of(20), max_tokens=1, stop=())
            driver.run()
        assert driver.core.stats().prefix_hit_tokens == 8


KEPT = {"replay_mode": "compact"}
REFUSED = {
    "window": (
        {"max_model_len": 12},
        "replay_len 8 and replay_keep 0 a hit needs 13 tokens, the longest prompt has 12",
    ),
    "block": ({"block_size": 32, "max_model_len": 32}, "a hit needs 33 tokens, the longest prompt has 32"),
    "keep": ({**KEPT, "replay_keep": 96}, "replay_keep 96 a hit needs 97 tokens, the longest prompt has 96"),
    "pool": ({"num_blocks": 4}, "a hit needs 13 tokens, the longest prompt has 12"),
    "replay_len": ({"replay_len": 7}, "is 7, the bound is 0, or >= window = 8"),
    "exact": (
        {**KEPT, "replay_keep": 48, "replay_exact": True, "replay_len": 48},
        "a hit needs 97 tokens, the longest prompt has 96",
    ),
    "replay_len_kept": ({"replay_len_kept": 7}, "is 7, the bound is 0, or >= window = 8"),
    "replay_keep": ({**KEPT, "replay_keep": 8}, "is 8, the bound is >= window + backtrack = 9"),
    "no_keep": (KEPT, "is 0, the bound is >= window + backtrack = 9"),
    "no_mode": ({"replay_keep": 9}, "is 9, the bound is 0 with replay_mode 0 (off)"),
    "no_window": ({**KEPT, "window": 0, "replay_keep": 9}, "0 (off) without a window"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_configuration_that_can_never_hit_is_refused(case):
    changes, text = REFUSED[case]
    with pytest.raises(ConfigurationError) as python:
        prefix_config(**changes)
    # The library says the same of the same values.
    config = prefix_config()
    for name, value in changes.items():
        object.__setattr__(config, name, value)
    with pytest.raises(ConfigurationError) as library:
        derive(config)
    assert str(python.value).endswith(text)
    assert str(library.value).replace("is 2,", "is compact,") == str(python.value)


def test_shortest_prompt_that_can_hit_is_not_refused():
    driver = Driver(prefix_config(max_model_len=13))
    for _ in range(2):
        driver.submit(prompt_of(13), max_tokens=1, stop=())
        driver.run()
    assert driver.core.stats().prefix_hit_tokens == 4


def test_salt_that_is_no_u64_is_refused():
    with pytest.raises(ArgumentError, match="salt: is -1"):
        Driver(prefix_config()).core.reset_prefix_cache(-1)
