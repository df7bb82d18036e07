"""What settings of bounded replay and of exact prefix hits come to, and what they are refused for."""

from __future__ import annotations

from typing import Any

import pytest

from deepinfer_core.assembly.bounded_replay import bounded_replay, exact_length
from deepinfer_core.assembly.prefix import check_prefix_cache
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import ConfigError, NotSupported
from deepinfer_core.types import SchedulerHints

RELEASED = SchedulerHints(window=128, backtrack=6, window_layers=40, encoder_layers=20, prefix_replay=True)


def settled(hints: SchedulerHints = RELEASED, num_draft: int = 0, **settings: Any) -> Any:
    return bounded_replay(EngineConfig.resolve(settings, environ={}), hints, num_draft)


def test_exact_lengths_of_the_released_model() -> None:
    assert (exact_length(128, 20), exact_length(128, 40), exact_length(128, 1), exact_length(0, 40)) == (
        2541,
        5081,
        128,
        0,
    )


@pytest.mark.parametrize(
    ("hints", "num_draft", "keep"),
    [(RELEASED, 0, 140), (RELEASED, 14, 143), (SchedulerHints(window=8, backtrack=30, encoder_layers=2), 0, 38)],
)
def test_default_has_room_for_what_may_be_rolled_back(hints: SchedulerHints, num_draft: int, keep: int) -> None:
    assert settled(hints, num_draft, replay_mode="compact").core_settings == {
        "replay_mode": "compact",
        "replay_keep": keep,
    }


def test_nothing_asked_for_changes_no_setting_of_the_core() -> None:
    assert settled(SchedulerHints()).core_settings == {}
    assert settled(prefix_cache=True).core_settings == {}


def test_keep_tokens_below_window_and_backtrack_names_the_least() -> None:
    assert settled(replay_mode="mask", keep_tokens=134).keep == 134
    with pytest.raises(ConfigError, match="keep_tokens is 133, the least for this model is 134") as caught:
        settled(replay_mode="mask", keep_tokens=133)
    assert caught.value.details == {"field": "keep_tokens", "value": 133, "least": 134}


@pytest.mark.parametrize("hints", [SchedulerHints(window=128), SchedulerHints(encoder_layers=4)])
def test_model_that_runs_every_row_refuses_a_mode(hints: SchedulerHints) -> None:
    with pytest.raises(NotSupported, match="runs every row of a prompt in every layer"):
        settled(hints, replay_mode="compact")


def test_exact_hits_replay_what_the_layers_of_the_mode_reach_back() -> None:
    exact = {"prefix_cache": True, "prefix_replay": "exact"}
    assert settled(**exact).core_settings == {"replay_exact": True, "replay_len": 5081, "replay_len_kept": 2541}
    kept = settled(**exact, replay_mode="compact")
    assert (kept.hit_length, kept.least_before_kept) == (2541, 2681)
    with pytest.raises(NotSupported, match="does not say how many layers"):
        settled(SchedulerHints(window=4), **exact)
    with pytest.raises(ConfigError, match="prefix_cache is off"):
        settled(prefix_replay="exact")


def test_exact_hits_of_a_model_without_windows_need_no_hint_and_no_replay() -> None:
    assert settled(SchedulerHints(), prefix_cache=True, prefix_replay="exact").core_settings == {}


@pytest.mark.parametrize(("longest", "fits"), [(2682, False), (2683, True)])
def test_shortest_prompt_that_an_exact_hit_helps_must_fit(longest: int, fits: bool) -> None:
    """With 2,682 tokens and 20 cached blocks the first kept row is 2,542: the replay starts at 1. One token follows."""
    replay = settled(prefix_cache=True, prefix_replay="exact", replay_mode="compact")
    sizes = {"block_size": 128, "num_blocks": 100, "max_model_len": longest}
    if fits:
        check_prefix_cache(RELEASED, replay, **sizes)
        return
    with pytest.raises(ConfigError, match="2541 positions that run again the shortest prompt that saves anything has"):
        check_prefix_cache(RELEASED, replay, **sizes)
