"""``deepinfer replay``: equal, different, another model, files that are none; and what a line must say for it."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from chat_toys import END, chat_parts, chat_tokenizer, save_chat_tokenizer
from engine_toys import ToyBackend, ToyParts, save_tokenizer

from deepinfer_core.assembly import fingerprint as fingerprint_module
from deepinfer_core.assembly.fingerprint import model_fingerprint
from deepinfer_core.cli import main
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.replay import read_results
from deepinfer_core.replay.run import params_record
from deepinfer_core.types import ModelCard

Run = Callable[..., tuple[int, str, str]]
Change = Callable[[list[dict[str, Any]]], object]


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    save_tokenizer(path)
    return path


@pytest.fixture
def parts() -> dict[str, Any]:
    """Parts of the toy engine that a test replaces."""
    return {}


@pytest.fixture
def run(
    model_dir: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Run:
    """Runs the command over toys; gives status, standard output and standard error."""

    def assemble(config: Any, **_: Any) -> ToyParts:
        sys.stderr.write("backend: toy (test)\n")
        card = ModelCard(path=model_dir, architecture="Toy", model_type="toy", config={})
        return ToyParts(config, card=card, **parts)

    monkeypatch.setattr("deepinfer_core.assembly.assemble.assemble", assemble)

    def call(*arguments: object, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main([*map(str, arguments)])
        out, err = capfd.readouterr()
        return status, out, err

    return call


@pytest.fixture
def results(run: Run, tmp_path: Path) -> Path:
    """Three lines: two answers, one failure, three samples."""
    path = tmp_path / "results.jsonl"
    lines = ['{"prompt": "one", "id": "a"}', '{"prompt": ""}', '{"prompt": "two", "n": 3, "temperature": 2}']
    status, _, _ = run(
        *("generate", "--prompts-file", "-", "--format", "jsonl", "--out", path, "--max-tokens", 12, "--seed", 7),
        stdin="\n".join(lines).encode(),
    )
    assert status == 1
    return path


def edit(path: Path, change: Change) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def scored(row: dict[str, Any], logprob: float, smaller: float = 0.5) -> None:
    values = {"logprob": logprob, "sum_smaller": smaller}
    row["logprobs"] = [{"token_id": token, **values} for token in row["token_ids"]]


# --- equal ------------------------------------------------------------------------------------------------------


def test_replay_of_an_untouched_file_is_equal(run: Run, results: Path) -> None:
    status, out, err = run("replay", results)
    assert (status, out) == (0, "4 of 4 answers are equal\n")
    assert err.splitlines() == ["backend: toy (test)", "deepinfer: not repeated, because they have no tokens: lines 2"]


def test_replay_as_json_has_the_same_on_one_line(run: Run, results: Path) -> None:
    status, out, _ = run("replay", results, "--json")
    assert status == 0
    assert json.loads(out) == {
        "equal": True,
        "answers": 4,
        "equal_answers": 4,
        "skipped_lines": [2],
        "differences": [],
        "environment": [],
    }


def test_lines_may_be_taken_out_and_reordered(run: Run, results: Path) -> None:
    edit(results, lambda rows: rows.__setitem__(slice(None), [rows[2], rows[0]]))
    assert run("replay", results)[:2] == (0, "4 of 4 answers are equal\n")


def test_settings_of_the_run_hold_again(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    run("generate", "x" * 20, "--max-model-len", 30, "--max-tokens", 50, "--ignore-eos", "--seed", 3, "--out", path)
    (row,) = (json.loads(line) for line in path.read_text().splitlines())
    assert row["finish_detail"] == "model_length"
    assert row["run"]["max_model_len"] == 30
    assert "seed" not in row["run"]["settings"]
    assert run("replay", path)[0] == 0
    status, _, err = run("replay", path, "--max-model-len", 40)
    assert status == 5
    assert "deepinfer: not as recorded: max_model_len is 40, was 30" in err


def test_answer_that_was_cut_is_compared_as_far_as_it_goes(run: Run, results: Path) -> None:
    def cut(rows: list[dict[str, Any]]) -> None:
        rows[0]["token_ids"] = rows[0]["token_ids"][:5]
        rows[0]["finish_reason"] = "abort"

    edit(results, cut)
    assert run("replay", results)[:2] == (0, "4 of 4 answers are equal\n")


def test_stop_string_of_a_chat_counts_where_it_did(run: Run, parts: dict[str, Any], model_dir: Path) -> None:
    pytest.importorskip("deepseek_recipe", reason="pip install 'deepinfer-core[chat]' to test chat")
    save_chat_tokenizer(model_dir)
    out = model_dir.parent / "chat.jsonl"
    question = b'{"messages": [{"role": "user", "content": "hi"}]}'
    parts |= chat_parts([f"a stop in reasoning{END}said stop there"], chat_tokenizer())
    run("generate", "--messages", "-", "--stop", "stop", "--out", out, stdin=question)
    assert json.loads(out.read_text())["content"] == "said "
    parts |= chat_parts([f"a stop in reasoning{END}said stop there"], chat_tokenizer())
    assert run("replay", out)[:2] == (0, "1 of 1 answers are equal\n")


def test_run_names_the_ops_that_others_serve_and_a_replay_tells_who_serves_them_now(
    run: Run, parts: dict[str, Any], tmp_path: Path
) -> None:
    def served(**by: str) -> None:
        backend = ToyBackend()
        backend.plan = {"meta.feed_tokens": "acme-backend", "gemm.dense": "acme-backend", **by}
        parts["backend"] = backend

    path = tmp_path / "r.jsonl"
    served(**{"gemm.dense": "deepinfer-gemm"})
    run("generate", "x", "--max-tokens", 3, "--seed", 3, "--out", path)
    (row,) = (json.loads(line) for line in path.read_text().splitlines())
    assert row["run"]["ops"] == {"gemm.dense": "deepinfer-gemm"}
    assert "not as recorded" not in run("replay", path)[2]
    served()
    told = "deepinfer: not as recorded: op gemm.dense is served by the backend, was by deepinfer-gemm"
    assert told in run("replay", path)[2].splitlines()


# --- different --------------------------------------------------------------------------------------------------


def test_changed_token_is_reported_with_its_place_and_both_tokens(run: Run, results: Path) -> None:
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    was = rows[2]["outputs"][1]["token_ids"][4]
    changed = 65 if was != 65 else 66

    def change(rows: list[dict[str, Any]]) -> None:
        rows[2]["outputs"][1]["token_ids"][4] = changed

    edit(results, change)
    status, out, _ = run("replay", results)
    assert status == 5
    spelled = repr(bytes([was]).decode("utf-8", "replace"))
    both = f"{was} {spelled} now, {changed} {chr(changed)!r} recorded"
    assert out == f"3 of 4 answers are equal\nfirst difference: line 3 (id 2), sample 2, token 5: {both}\n"
    status, out, _ = run("replay", results, "--json")
    (difference,) = json.loads(out)["differences"]
    assert (status, difference["line"], difference["sample"], difference["position"]) == (5, 3, 1, 4)
    assert (difference["recorded_token"], difference["token"]) == (changed, was)


def test_first_difference_is_that_of_the_first_line(run: Run, results: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["token_ids"].pop()
        rows[2]["outputs"][0]["token_ids"][0] += 1

    edit(results, change)
    status, out, _ = run("replay", results)
    assert status == 5
    assert out.startswith("2 of 4 answers are equal\nfirst difference: line 1 (id a), sample 1, token 12: ")
    assert out.endswith("now, no token recorded\n")


def test_other_end_of_equal_tokens_is_a_difference(run: Run, results: Path) -> None:
    edit(results, lambda rows: rows[0].update(finish_reason="stop", finish_detail="eos"))
    status, out, _ = run("replay", results)
    assert status == 5
    assert "sample 1: the same tokens, but it ended with length/max_tokens and did with stop/eos" in out


def test_other_environment_is_named_and_no_difference(run: Run, results: Path) -> None:
    def change(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            row["run"]["versions"]["deepinfer-core"] = "0.0.1"
            row["run"]["arch"] = "sm_90"
            row["run"]["settings"]["block_size"] = 2
            del row["run"]["versions"]["numpy"]

    edit(results, change)
    status, out, err = run("replay", results, "--block-size", 4)
    assert (status, out) == (0, "4 of 4 answers are equal\n")
    lines = [line for line in err.splitlines() if "not as recorded" in line]
    assert lines[:2] == [
        "deepinfer: not as recorded: arch is none, was sm_90",
        "deepinfer: not as recorded: block_size is 4, was 2",
    ]
    assert lines[2].startswith("deepinfer: not as recorded: deepinfer-core is ")


# --- another model, no results ----------------------------------------------------------------------------------


def test_other_model_is_refused(run: Run, results: Path, model_dir: Path) -> None:
    (model_dir / "config.json").write_text("{}")
    status, out, err = run("replay", results)
    assert (status, out) == (4, "")
    assert f"E_MODEL_MISMATCH: {model_dir} is not the model that the results were made with" in err


def test_other_model_by_option_is_refused_before_it_loads(run: Run, results: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    status, out, err = run("replay", results, "--model", other)
    assert (status, out) == (4, "")
    assert err.startswith("deepinfer: E_MODEL_MISMATCH: ")


def test_model_that_is_gone_is_refused(run: Run, results: Path) -> None:
    edit(results, lambda rows: [row["run"].update(model="/nonexistent") for row in rows])
    status, _, err = run("replay", results)
    assert status == 4
    assert "E_MODEL_MISSING: no such folder: /nonexistent" in err


def test_setting_of_the_file_is_not_said_to_be_an_option(run: Run, results: Path) -> None:
    edit(results, lambda rows: [row["run"]["settings"].update(draft_tokens="many") for row in rows])
    status, _, err = run("replay", results)
    assert status == 2
    assert err.splitlines()[:2] == [
        "deepinfer: E_CONFIG: draft_tokens must be an integer from 0 to 15, got 'many'",
        "  reason: set by draft_tokens in the results",
    ]
    assert run("replay", results, "--draft-tokens", 0)[0] == 2  # what the file says is checked all the same


def test_file_that_was_cut_short_is_refused_with_the_line(run: Run, results: Path) -> None:
    data = results.read_bytes()
    results.write_bytes(data[:-40])
    status, out, err = run("replay", results)
    assert (status, out) == (2, "")
    assert err.startswith("deepinfer: E_INPUT: line 3 is not JSON\n")


def test_byte_order_mark_and_empty_lines_say_nothing(run: Run, results: Path) -> None:
    first, *others = results.read_bytes().splitlines(keepends=True)
    results.write_bytes(b"\xef\xbb\xbf" + first + b"\n \n" + b"".join(others) + b"\n")
    assert run("replay", results)[:2] == (0, "4 of 4 answers are equal\n")


@pytest.mark.parametrize("field", ["prompt_token_ids", "token_ids"])
def test_token_that_the_model_does_not_have_is_refused_with_the_line(run: Run, results: Path, field: str) -> None:
    edit(results, lambda rows: rows[0][field].__setitem__(0, 70_000))
    status, out, err = run("replay", results)
    assert (status, out) == (2, "")
    assert "deepinfer: E_INPUT: line 1 has token 70000\n" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[0].pop("run"), "line 1 has no run"),
        (lambda rows: rows[0]["run"].update(format=2), "line 1 has a run of format 2"),
        (lambda rows: rows[0]["run"].update(settings=3), "line 1 has a run without settings or versions"),
        (lambda rows: rows[2]["run"].update(backend="x"), "line 3 is of another run than line 1"),
        (lambda rows: rows[0].pop("params"), "line 1 has no params"),
        (lambda rows: rows[0]["params"].update(tempratur=1), "line 1 has params that are none"),
        (lambda rows: rows[0]["params"].pop("seed"), "line 1 has 1 answers, n of 1 and seed None"),
        (lambda rows: rows[2]["outputs"].pop(), "line 3 has 2 answers, n of 3 and seed "),
        (lambda rows: rows[0].update(prompt_token_ids="abc"), "line 1 has no prompt_token_ids"),
        (lambda rows: rows[0]["token_ids"].append(-1), "line 1 has -1 among its token_ids"),
        (lambda rows: rows[0].pop("finish_reason"), "line 1 has no finish_reason"),
        (lambda rows: rows[0].update(logprobs=[1]), "line 1 has logprobs that do not fit its tokens"),
        (lambda rows: scored(rows[0], 10**400), "line 1 has logprobs that are none"),
        (lambda rows: scored(rows[0], math.nan), "line 1 has logprobs that are not finite"),
        (lambda rows: scored(rows[0], -1.0, math.inf), "line 1 has logprobs that are not finite"),
        (lambda rows: scored(rows[0], 5.0), "line 1 has a logprob above 0"),
        (lambda rows: scored(rows[0], -1.0, -5.0), "line 1 has a sum_smaller outside 0 to 1.001"),
        (lambda rows: scored(rows[0], -1.0, 1.01), "line 1 has a sum_smaller outside 0 to 1.001"),
        (lambda rows: rows[0]["token_ids"].append(2**31), "line 1 has 2147483648 among its token_ids"),
        (lambda rows: rows[0].update(prompt_token_ids=[]), "line 1 has a prompt of 0 tokens and "),
        (lambda rows: rows[2]["params"].update(max_tokens=3), " and 12 tokens of an answer, of at most 3"),
        (lambda rows: rows[0].update(stops_between=[1]), "line 1 has stops_between that is no pair"),
        (lambda rows: rows[2].update(outputs=[3]), "line 3 has outputs that are no list of answers"),
        (lambda rows: rows.clear(), "has no answer that could be repeated"),
        (lambda rows: rows.__delitem__(slice(0, 3, 2)), "has no answer that could be repeated"),
    ],
)
def test_file_that_is_no_result_is_refused_before_the_model_loads(
    run: Run, results: Path, change: Change, message: str
) -> None:
    edit(results, change)
    status, out, err = run("replay", results)
    assert (status, out) == (2, "")
    assert err.startswith("deepinfer: E_INPUT: ")
    assert message in err.splitlines()[0]


def test_missing_file_is_refused(run: Run) -> None:
    status, _, err = run("replay", "absent.jsonl")
    assert status == 2
    assert err.startswith("deepinfer: E_INPUT: cannot read the results absent.jsonl")


# --- what a line says -------------------------------------------------------------------------------------------


GIVEN: tuple[dict[str, Any], ...] = (
    {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "max_tokens": 9, "min_tokens": 3, "n": 2},
    {"stop": ["a", "é"], "stop_token_ids": [3], "include_stop": True, "seed": 2**64 - 5, "ignore_eos": True},
    {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5, "logit_bias": {7: 1.5, 8: -3}},
    {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": True, "logprobs_mode": "raw", "forced_token_ids": [5, -1]},
    {"sampler": {"name": "s", "params": {"a": [1]}}, "logits_filters": ["f", "g"], "replay_mode": "off"},
    {"json_schema": {}},
    {"regex": "a"},
    {"grammar": 'root ::= "a"'},
    {"json_object": True},
    {"response_format": {"type": "json_object"}},
    {"so_args": {"schema_type": "regex", "schema": "a", "trigger_token_ids": [4], "bound_token_id": 5}},
)


@pytest.mark.parametrize("given", GIVEN)
def test_parameters_read_back_as_they_were(given: dict[str, Any]) -> None:
    params = SamplingParams().updated(given)
    back = SamplingParams().updated(json.loads(json.dumps(params_record(params, params.seed))))
    assert back.structured == params.structured
    assert back.updated({"so_args": None}) == params.updated({"so_args": None})


def test_every_parameter_is_among_those_that_are_read_back() -> None:
    assert {item.name for item in attrs.fields(SamplingParams)} == {name for given in GIVEN for name in given}
    assert params_record(SamplingParams(), None) == {}


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"temperature": 0.3, "top_p": 0.5, "top_k": 7, "min_p": 0.1, "stop": ["a", "é"], "stop_token_ids": [3]},
        {"n": 2, "ignore_eos": True, "min_tokens": 3, "include_stop": True},
        {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5},
        {"logit_bias": {7: 1.5, 8: -3}, "logprobs": True, "top_logprobs": 2, "logprobs_mode": "raw"},
        {"forced_token_ids": [5, -1]},
    ],
)
def test_params_of_a_line_read_back_as_they_were(run: Run, tmp_path: Path, params: dict[str, Any]) -> None:
    given = {"max_tokens": 6, "seed": 2**64 - 5, **params}
    path = tmp_path / "r.jsonl"
    line = json.dumps({"prompt": "hello", **given}).encode()
    run("generate", "--prompts-file", "-", "--format", "jsonl", "--out", path, stdin=line)
    (request,) = read_results(str(path)).requests
    assert request.params == SamplingParams().updated(given)
    assert bytes(request.prompt_token_ids[1:]) == b"hello"


def test_standard_output_has_no_run(run: Run) -> None:
    row = json.loads(run("generate", "hello", "--json")[1])
    assert not {"run", "params", "prompt_token_ids"} & set(row)


def test_fingerprint_sees_names_sizes_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def made(**files: str) -> str:
        folder = tmp_path / "m"
        folder.mkdir(exist_ok=True)
        for old in folder.iterdir():
            old.unlink()
        for name, content in files.items():
            (folder / name.replace("_", ".")).write_text(content)
        return model_fingerprint(folder)

    first = made(config_json="{}", a_safetensors="x" * 1000)
    assert first == made(config_json="{}", a_safetensors="x" * 1000, README_md="other")
    others = [
        made(config_json="[]", a_safetensors="x" * 1000),
        made(config_json="{}", b_safetensors="x" * 1000),
        made(config_json="{}", a_safetensors="x" * 1001),
        made(config_json="{}", a_safetensors="x" * 999 + "y"),
    ]
    assert len({first, *others}) == 5
    monkeypatch.setattr(fingerprint_module, "WHOLE_BYTES", 100)
    monkeypatch.setattr(fingerprint_module, "SAMPLE_BYTES", 4)
    sampled = [made(a_safetensors="x" * 1000), made(a_safetensors="x" * 999 + "y"), made(a_safetensors="y" + "x" * 999)]
    assert len(set(sampled)) == 3


# --- the shipped model ------------------------------------------------------------------------------------------

NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")
def test_drafts_penalties_and_samples_of_the_shipped_model_repeat(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl"
    prompts = [
        {"prompt": "import os\n", "n": 2, "logprobs": True, "top_p": 0.9},
        {"prompt": "def f(x):\n", "repetition_penalty": 1.2, "frequency_penalty": 0.5, "temperature": 0.8},
        {"prompt": "class A:\n", "temperature": 0, "logit_bias": {"15": 2}},
    ]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    files = ["--prompts-file", str(source), "--out", str(path)]
    assert main(["generate", "--backend", "cpu", *files, "--max-tokens", "16", "--draft-tokens", "3"]) == 0
    capfd.readouterr()
    assert main(["replay", str(path)]) == 0
    assert capfd.readouterr().out == "4 of 4 answers are equal\n"

    def change(rows: list[dict[str, Any]]) -> None:
        rows[0]["outputs"][0]["token_ids"][2] += 1

    edit(path, change)
    assert main(["replay", str(path)]) == 5
    text = capfd.readouterr().out
    assert text.startswith("3 of 4 answers are equal\nfirst difference: line 1 (id 0), sample 1, token 3: ")
    assert text.count("log-probability") == 2
