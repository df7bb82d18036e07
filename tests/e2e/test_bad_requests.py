"""Requests and options that cannot be served, on the shipped model: each its own error, the others run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core import LLM, SamplingParams
from deepinfer_core.errors import DeepInferError

FEW = ("--max-tokens", 2, "--seed", 1, "--no-stream")


def code_of(err: str) -> str:
    line = next(line for line in err.splitlines() if line.startswith("deepinfer: E_"))
    return line.split(": ")[1]


def codes(records: list[dict[str, Any]]) -> list[str | None]:
    return [record["error"]["code"] if "error" in record else None for record in records]


@pytest.mark.parametrize(
    ("arguments", "code", "status", "names"),
    [
        (["--backend", "cqu"], "E_BACKEND_MISSING", 3, "did you mean 'cpu'"),
        (["--model", "/nowhere/at/all"], "E_MODEL_MISSING", 4, "/nowhere/at/all"),
        (["--temperature", "-1"], "E_PARAM", 2, "temperature"),
        (["--top-p", "nan"], "E_PARAM", 2, "top_p"),
        (["--max-tokens", "0"], "E_PARAM", 2, "max_tokens"),
        (["--ep", "2"], "E_UNSUPPORTED", 2, "ep"),
        (["--kv-memory", "1KiB"], "E_CAPACITY", 2, "kv"),
        (["--no-such-option"], "E_USAGE", 2, "--no-such-option"),
    ],
)
def test_generate_bad_option_is_refused_before_work(run, arguments, code: str, status: int, names: str) -> None:
    result = run("generate", *arguments, "import os")
    assert (result.status, result.out, code_of(result.err)) == (status, "", code)
    assert names in result.err
    assert "Traceback" not in result.err


def test_generate_empty_and_overlong_prompts_fail_alone(run) -> None:
    result = run("--json", "generate", *FEW, "", "import os", "x " * 3000)
    records = [json.loads(line) for line in result.out.splitlines()]
    assert result.status == 1
    assert codes(records) == ["E_PROMPT", None, "E_PROMPT"]
    assert "2048" in records[2]["error"]["message"] + records[2]["error"]["reason"]
    assert records[1]["text"]


def test_generate_malformed_lines_are_named_and_the_others_run(run, tmp_path: Path) -> None:
    lines = [b'{"prompt": "import os"}', b"", b"[1]", b"null", b"{bad", b'{"prompt": "\xff"}', b'{"prompt": "def f("}']
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(b"\n".join(lines) + b"\n")
    out = tmp_path / "out.jsonl"
    result = run("generate", *FEW, "--prompts-file", file, "--out", out)
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert result.status == 1
    assert codes(records) == [None, *["E_INPUT"] * 4, "E_PROMPT", None]
    for number, record in enumerate(records, start=1):
        if "error" in record:
            assert f"line {number}" in record["error"]["message"]


def test_generate_prompt_that_is_not_utf8_is_refused(run, tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_bytes(b"import os\n\xff\xfe\n")
    result = run("--json", "generate", *FEW, "--prompts-file", file)
    records = [json.loads(line) for line in result.out.splitlines()]
    assert result.status == 1
    assert codes(records) == [None, "E_PROMPT"]


def test_llm_refused_and_finished_requests_leave_no_unit_held() -> None:
    with LLM(max_num_seqs=4) as llm:
        outputs = llm.generate(["import os", "", "x " * 3000, "def f("], SamplingParams(max_tokens=3, seed=1))
        stats = llm.built.engine.core.stats()
        llm.built.engine.core.audit()
    assert [output.error is None for output in outputs] == [True, False, False, True]
    pools = (stats.main, stats.swa, stats.state)
    assert [pool.held + pool.limbo for pool in pools] == [0, 0, 0]
    assert all(pool.free > 0 for pool in pools)


def test_llm_after_a_refused_parameter_goes_on() -> None:
    with LLM(max_num_seqs=4) as llm:
        with pytest.raises(DeepInferError, match="stop_token_ids"):
            llm.generate(["import os"], SamplingParams(stop_token_ids=(5000,)))
        assert llm.generate(["import os"], SamplingParams(max_tokens=2, seed=1))[0].finish_reason == "length"
