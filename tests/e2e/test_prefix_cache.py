"""The prefix cache on the shipped model: what is reused, what is reported, and what stays equal."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from e2e_workload import run_jobs, workload

from deepinfer_core import LLM, SamplingParams

pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

WINDOW = 32
GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)


def prompt_of(length: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(3, 1500) for _ in range(length)]


def saved(block: int, shared: int, length: int) -> int:
    return max(0, min(shared, length - 1) // block * block - WINDOW)


@pytest.mark.parametrize(
    ("block", "length"),
    [(8, 46), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((16, 100), (32, 100), (64, 200)))],
)
def test_four_runs_of_a_prompt_agree_from_the_second_on(block: int, length: int) -> None:
    prompt = prompt_of(length, 1)
    with LLM(prefix_cache=True, block_size=block, max_num_seqs=2) as llm:
        runs = [llm.generate([prompt], GREEDY.updated({"max_tokens": 8}))[0] for _ in range(4)]
    assert [run.cached_tokens for run in runs] == [0, *[saved(block, length, length)] * 3]
    assert runs[1].cached_tokens > 0
    assert runs[1].token_ids == runs[2].token_ids == runs[3].token_ids


def test_prompt_that_saves_nothing_has_the_tokens_of_a_run_without_the_cache() -> None:
    jobs = workload(7, longest=30, vocab_size=1500, limit=2048, seed=3)
    with LLM(block_size=16, max_num_seqs=8) as plain, LLM(prefix_cache=True, block_size=16, max_num_seqs=8) as caching:
        assert run_jobs(plain, jobs) == run_jobs(caching, jobs)
        assert caching.prefix_cache_report.saved_tokens == 0
        assert caching.prefix_cache_report.queries > 0


def test_hits_have_the_same_tokens_with_chunks_and_steps_in_flight() -> None:
    """One sequence at a time, so that each prompt finds the same blocks."""
    shared = prompt_of(90, 6)
    prompts = [[*shared[:cut], *prompt_of(tail, 7 + tail)] for cut, tail in ((90, 3), (90, 9), (64, 1), (81, 30))]
    runs = []
    for settings in ({"overlap": False}, {"overlap": True}, {"overlap": True, "max_chunk": 11}):
        with LLM(prefix_cache=True, block_size=8, max_num_seqs=1, **settings) as llm:
            outputs = llm.generate(prompts, GREEDY)
        runs.append([(output.token_ids, output.cached_tokens, output.replayed_tokens) for output in outputs])
    assert [hit for _, hit, _ in runs[0]] == [0, *(saved(8, s, n) for s, n in ((90, 99), (64, 65), (81, 111)))]
    assert runs[0] == runs[1] == runs[2]


def test_reset_after_ten_of_twenty_tokens_changes_none() -> None:
    prompt = prompt_of(100, 2)
    params = GREEDY.updated({"max_tokens": 20})
    with LLM(prefix_cache=True, block_size=16, max_num_seqs=2) as llm:
        _, want = (llm.generate([prompt], params)[0] for _ in range(2))
        got: list[int] = []
        with llm.stream([prompt], params) as stream:
            for chunk in stream:
                got += chunk.token_ids
                if len(got) == 10:
                    llm.reset_prefix_cache()
        (cold,) = llm.generate([prompt], params)
    assert tuple(got) == want.token_ids
    assert cold.cached_tokens == 0


def test_samples_share_the_prompt_with_a_cache_too() -> None:
    prompt = prompt_of(70, 3)
    params = SamplingParams(max_tokens=8, ignore_eos=True, seed=5, n=3)
    with LLM(prefix_cache=True, block_size=8, max_num_seqs=4) as llm:
        first = llm.generate([prompt], params)[0]
        runs = [llm.generate([prompt], params)[0] for _ in range(2)]
        alone = [llm.generate([prompt], params.updated({"n": 1, "seed": c.seed}))[0].token_ids for c in first.outputs]
    assert [c.token_ids for c in runs[0].outputs] == [c.token_ids for c in runs[1].outputs] == alone


def test_command_reports_what_was_saved(run, tmp_path: Path) -> None:
    prompt = prompt_of(100, 4)
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt_token_ids": [*prompt, tail], "max_tokens": 2} for tail in (5, 6, 7)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = run(
        "generate",
        "--prefix-cache",
        "--block-size",
        16,
        "--max-num-seqs",
        1,
        "--seed",
        1,
        "--json",
        "--prompts-file",
        file,
    )
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert result.status == 0
    assert [(row["cached_tokens"], row["replayed_tokens"]) for row in rows] == [(0, 0), (64, 32), (64, 32)]
    assert result.err.splitlines()[-1] == (
        "deepinfer: prefix cache: 3 look-ups, 128 tokens saved, 64 run again, 0 blocks evicted"
    )


def test_command_without_the_option_reports_nothing(run) -> None:
    result = run("generate", "--no-prefix-cache", "--seed", 1, "--max-tokens", 1, "--no-stream", "import os")
    assert result.status == 0
    assert "prefix" not in result.err


def test_setting_under_which_nothing_can_hit_is_refused(run) -> None:
    result = run("generate", "--prefix-cache", "--max-model-len", 100, "import os")
    assert result.status == 2
    assert "E_CONFIG: prefix_cache is on, but no prompt can ever hit" in result.err
    assert "has 129 tokens, and the longest that runs has 99" in result.err
