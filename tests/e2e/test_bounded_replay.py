"""Bounded replay on the shipped model: modes of an engine and of its requests, and what is refused."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from e2e_workload import run_jobs, workload

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import ConfigError, InvalidParameter

pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def prompt_of(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 1500) for _ in range(length)]


def test_mask_and_compact_give_the_same_tokens_whatever_runs_beside_and_in_flight() -> None:
    """With drafts, and in one of the engines in chunks, few at a time."""
    jobs = workload(8, longest=150, vocab_size=1500, limit=300, seed=5)
    drafts = {"draft_tokens": 3, "verify": "coupled"}
    with LLM(replay_mode="mask", max_num_seqs=8, **drafts) as mask:
        want = run_jobs(mask, jobs)
    with LLM(replay_mode="compact", validation="full", max_chunk=29, max_num_seqs=3, **drafts) as compact:
        assert run_jobs(compact, jobs) == want


def test_request_has_the_tokens_of_its_own_mode() -> None:
    prompts = [prompt_of(n, n) for n in (30, 90, 200)]
    with LLM(max_num_seqs=4) as plain, LLM(replay_mode="compact", keep_tokens=37, max_num_seqs=4) as compact:
        off, kept = ([o.token_ids for o in llm.generate(prompts, GREEDY)] for llm in (plain, compact))
        modes = [GREEDY.updated({"replay_mode": mode}) for mode in ("off", "mask", "compact")]
        got = [o.token_ids for o in compact.generate(prompts * 3, [m for m in modes for _ in prompts])]
    assert got == [*off, *kept, *kept]


@pytest.mark.parametrize("mode", ["off", "compact"])
def test_deterministic_batch_gives_warm_prompts_the_tokens_of_cold_ones(mode: str) -> None:
    """Exact replays, drafts, chunks and neighbours; a prompt's tokens depend on itself alone."""
    shared = prompt_of(400, 8)
    prompts = [[*shared[:cut], *prompt_of(tail, 9 + tail)] for cut, tail in ((400, 7), (400, 60), (377, 5), (40, 9))]
    promise = {"replay_mode": mode, "deterministic": "batch", "draft_tokens": 2, "block_size": 16}
    with LLM(max_num_seqs=1, **promise) as cold:
        want = [o.token_ids for o in cold.generate(prompts, GREEDY)]
    with LLM(prefix_cache=True, prefix_replay="exact", max_num_seqs=3, max_chunk=70, **promise) as warm:
        runs = [warm.generate(prompts[:n], GREEDY) for n in (1, 4, 4)]
    assert all(o.cached_tokens > 0 for o in runs[2][:3])
    assert [[o.token_ids for o in run] for run in runs] == [want[:1], want, want]


def test_replayed_rows_of_an_exact_hit_do_not_grow_with_the_context() -> None:
    seen = set()
    with LLM(replay_mode="compact", prefix_cache=True, prefix_replay="exact", block_size=16, max_num_seqs=1) as llm:
        for length in (320, 640, 1280):
            prefix = prompt_of(length, length)
            llm.generate([prefix], GREEDY.updated({"max_tokens": 1}))
            (output,) = llm.generate([[*prefix, *prompt_of(60, 5)]], GREEDY.updated({"max_tokens": 1}))
            seen.add((output.cached_tokens - length, output.replayed_tokens))
    assert seen == {(-125, 125)}


@pytest.mark.slow
def test_profile_of_a_bounded_engine_has_its_kept_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    prompts = [prompt_of(n, n) for n in (200, 600)]
    with LLM(replay_mode="compact", max_num_seqs=2) as plain:
        want = [o.token_ids for o in plain.generate(prompts, GREEDY)]
    with LLM(replay_mode="compact", target_itl_ms=400, max_num_seqs=2, max_model_len=1024) as llm:
        assert [o.token_ids for o in llm.generate(prompts, GREEDY)] == want
    (profile,) = tmp_path.rglob("*.json")
    prefill = json.loads(profile.read_text())["prefill"]
    assert prefill["keep"] == 44


def test_prompt_logprobs_need_mode_off() -> None:
    wish = GREEDY.updated({"prompt_logprobs": True})
    with LLM(replay_mode="compact") as llm:
        refused, scored = llm.generate([prompt_of(60, 1)] * 2, [wish, wish.updated({"replay_mode": "off"})])
    assert "set replay_mode='off' for this request" in str(refused.error)
    assert scored.prompt_logprobs is not None


def test_mode_beyond_that_of_the_engine_is_refused_by_name() -> None:
    with LLM(replay_mode="mask") as llm:
        (output,) = llm.generate([prompt_of(60, 1)], GREEDY.updated({"replay_mode": "compact"}))
    assert isinstance(output.error, InvalidParameter)
    assert "make the engine with replay_mode='compact'" in str(output.error)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"replay_mode": "compact", "keep_tokens": 36}, "keep_tokens is 36, the least for this model is 37"),
        ({"keep_tokens": 40}, "keep_tokens is 40, and replay_mode is off"),
        ({"prefix_replay": "exact"}, "prefix_replay is 'exact', and prefix_cache is off"),
        (
            {"prefix_cache": True, "prefix_replay": "exact", "block_size": 16, "max_model_len": 250},
            "prefix_cache is on, but no prompt can ever hit",
        ),
    ],
)
def test_keep_tokens_that_cannot_be_are_refused_with_the_least(settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        LLM(**settings)


def test_command_takes_the_mode(run) -> None:
    result = run("generate", "--replay-mode", "compact", "--keep-tokens", 20, "import os")
    assert result.status == 2
    assert "set --keep-tokens to 37 or more" in result.err
