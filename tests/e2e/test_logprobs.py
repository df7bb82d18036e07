"""Penalties, biases and log-probabilities on the shipped model: what one path says, another must say too."""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
from attrs import evolve

from deepinfer_core import LLM, RequestOutput, SamplingParams

PROMPTS = ["import os\nimport sys\n", "def f(x):\n    return x\n", "class A:\n    def __init__(self"]
LENGTH = 16


def answers(params: SamplingParams | list[SamplingParams], prompts: Any = None, **settings: Any) -> list[RequestOutput]:
    with LLM(backend="cpu", max_num_seqs=4, block_size=16, max_model_len=128, **settings) as llm:
        outputs = llm.generate(PROMPTS if prompts is None else prompts, params)
        llm.built.engine.core.audit()
    for output in outputs:
        if output.error is not None:
            raise output.error
    return outputs


def greedy(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": LENGTH, "ignore_eos": True, **changes})


def ids(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def test_prompt_logprobs_equal_those_of_decoding_the_same_tokens() -> None:
    decoded = answers(greedy(logprobs=True, logprobs_mode="raw", prompt_logprobs=True))
    whole = [[*output.prompt_token_ids, *output.token_ids] for output in decoded]
    for settings in ({"max_chunk": 7}, {"overlap": False}):
        scored = answers(greedy(max_tokens=1, prompt_logprobs=True), whole, **settings)
        for output, again in zip(decoded, scored, strict=True):
            assert again.prompt_logprobs is not None
            assert output.prompt_logprobs is not None
            assert output.logprobs is not None
            known = [*output.prompt_logprobs[1:], *(item.logprob for item in output.logprobs)]
            np.testing.assert_allclose(again.prompt_logprobs[1:], known, atol=1e-4)


@pytest.mark.parametrize("penalty", [-2.0, 2.0])
def test_frequency_penalty_gives_the_same_tokens_with_and_without_drafts(penalty: float) -> None:
    params = greedy(frequency_penalty=penalty, logprobs=True, logprobs_mode="raw")
    without = answers(params)
    most = max(count for output in without for count in Counter(output.token_ids).values())
    assert most > 3 if penalty < 0 else most <= 3
    for draft_tokens in (1, 3):
        drafted = answers(params, draft_tokens=draft_tokens)
        assert ids(drafted) == ids(without)
        assert sum(output.outputs[0].drafted_tokens for output in drafted) > 0
        for output, plain in zip(drafted, without, strict=True):
            (completion,) = output.outputs
            assert completion.accepted_tokens <= completion.drafted_tokens
            assert completion.logprobs is not None
            assert plain.logprobs is not None
            assert [item.token_id for item in completion.logprobs] == list(completion.token_ids)
            assert sum(item.draft_logprob is not None for item in completion.logprobs) == completion.accepted_tokens
            np.testing.assert_allclose(
                [item.logprob for item in completion.logprobs], [item.logprob for item in plain.logprobs], atol=1e-4
            )


def test_penalties_and_biases_equal_the_solo_run_for_every_chunk_size_and_depth() -> None:
    params = [
        greedy(repetition_penalty=1.3, frequency_penalty=0.5),
        greedy(temperature=0.8, presence_penalty=1.0, seed=3, top_p=0.95),
        greedy(logit_bias={201: -100, 5: 2.5}, repetition_penalty=0.9, temperature=1, seed=4),
    ]
    solo = [answers(p, [prompt], overlap=False)[0].token_ids for p, prompt in zip(params, PROMPTS, strict=True)]
    for settings in ({"max_chunk": 3}, {"overlap": False, "max_num_seqs": 2}):
        with LLM(backend="cpu", **{"max_num_seqs": 4, "block_size": 16, "max_model_len": 128, **settings}) as llm:
            assert ids(llm.generate(PROMPTS, params)) == solo
    assert 201 not in solo[2]


def test_logprobs_of_a_drawn_token_are_those_of_its_place_in_the_list() -> None:
    outputs = answers(SamplingParams(temperature=1, seed=5, max_tokens=8, top_logprobs=1000, ignore_eos=True))
    for output in outputs:
        assert output.logprobs is not None
        for item in output.logprobs:
            assert dict(item.top).get(item.token_id, item.logprob) == item.logprob
            values = [p for _, p in item.top]
            assert values == sorted(values, reverse=True)
            assert float(np.exp(np.array(values, dtype=np.float64)).sum()) <= 1 + 1e-4


@pytest.mark.slow
def test_sum_smaller_of_many_draws_is_spread_evenly() -> None:
    params = SamplingParams(temperature=1, seed=11, max_tokens=64, logprobs=True, ignore_eos=True, n=8)
    outputs = answers(params, sum_smaller=True)
    values = [i.sum_smaller for o in outputs for c in o.outputs for i in c.logprobs or ()]
    assert len(values) == 3 * 8 * 64
    assert all(value is not None and 0 < value <= 1.001 for value in values)
    # The mass up to and with the drawn token exceeds u with probability at least 1 - u.
    for u in (0.25, 0.5, 0.75):
        share = sum(value > u for value in values if value is not None) / len(values)
        assert share > 1 - u - 0.05


def test_command_lists_logprobs_as_strict_json(run: Any) -> None:
    result = run(
        "--json", "generate", "--max-tokens", 3, "--seed", 1, "--no-stream", "--top-logprobs", 2, "--prompt-logprobs",
        "--repetition-penalty", 1.2, "--presence-penalty", 0.5, "--frequency-penalty", -0.5, "--logit-bias", "5=-3",
        "--logit-bias", "6=1.5",
        "--logprobs-mode", "raw", "--forced-token-ids", "-1,721", "--min-tokens", 3, "import os",
    )  # fmt: skip
    assert result.status == 0, result.err

    def no_constant(name: str) -> None:
        raise ValueError(name)

    record = json.loads(result.out, parse_constant=no_constant)
    assert len(record["logprobs"]) == record["num_output_tokens"] == 3
    assert record["logprobs"][1]["token_id"] == 721
    assert record["cumulative_logprob"] == pytest.approx(sum(item["logprob"] for item in record["logprobs"]))
    assert all(len(item["top"]) == 2 for item in record["logprobs"])
    assert record["prompt_logprobs"][0] is None
    assert len(record["prompt_logprobs"]) == record["num_prompt_tokens"]


def test_one_legal_token_has_a_finite_logprob_and_strict_json() -> None:
    if importlib.util.find_spec("xgrammar") is None:  # importing it by itself wants transformers
        pytest.skip("install xgrammar to keep answers to a regular expression")
    params = SamplingParams(max_tokens=12, temperature=1, seed=2, top_logprobs=5, regex="aaaa")
    for mode in ("processed", "raw"):
        (output,) = answers(evolve(params, logprobs_mode=mode), ["import os"])
        record = json.loads(json.dumps(output.as_record(), allow_nan=False))
        assert output.text == "aaaa"
        assert len(record["logprobs"]) == record["num_output_tokens"]
        assert all(-9999 <= item["logprob"] <= 0 for item in record["logprobs"])
        assert all(len(item["top"]) == 5 for item in record["logprobs"]) == (mode == "raw")
        assert record["logprobs"][-1]["token_id"] == output.token_ids[-1]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["--repetition-penalty", "0"],
            "repetition_penalty is 0.0; allowed: a finite number > 0 (1 is off), in 32 bits",
        ),
        (["--presence-penalty", "2.5"], "presence_penalty is 2.5; allowed: a number from -2 to 2"),
        (
            ["--logit-bias", "x=1"],
            "logit_bias is 'x'; allowed: at most 1024 token ids, each with a number",
        ),
        (["--logit-bias", "7"], "logit_bias is '7'; allowed: ID=VALUE: at most 1024 token ids"),
        (["--logit-bias", "7=1e3"], "logit_bias is 1000.0; allowed:"),
        (["--top-logprobs", "1001"], "top_logprobs is 1001; allowed: an integer from 0 to 1000"),
        (["--logprobs-mode", "both"], "logprobs_mode is 'both'; allowed: one of processed, raw"),
        (["--forced-token-ids", "1,x"], "forced_token_ids is 'x'; allowed: a list of token ids"),
    ],
)
def test_command_refuses_a_wrong_value_in_one_line(run: Any, arguments: list[str], text: str) -> None:
    result = run("generate", *arguments, "import os")
    assert (result.status, result.out) == (2, "")
    assert f"deepinfer: E_PARAM: {text}" in result.err
    assert "Traceback" not in result.err


def test_lines_of_a_file_have_their_own_parameters(run: Any, tmp_path: Any) -> None:
    lines = [
        {"prompt": "import os", "top_logprobs": 1},
        {"prompt": "import os", "logit_bias": {"99999": 1}},
        {"prompt": "import os", "logit_bias": {"721": 100}, "max_tokens": 2},
        {"prompt": "import os", "prompt_logprobs": True, "frequency_penalty": 3},
    ]
    file = tmp_path / "in.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    result = run("--json", "generate", "--prompts-file", file, "--max-tokens", 2, "--seed", 1, "--temperature", 0)
    first, second, third, fourth = map(json.loads, result.out.splitlines())
    assert result.status == 1
    assert len(first["logprobs"]) == 2
    assert "logit_bias is 99999" in second["error"]["message"]
    assert third["token_ids"] == [721, 721]
    assert "frequency_penalty is 3" in fourth["error"]["message"]
