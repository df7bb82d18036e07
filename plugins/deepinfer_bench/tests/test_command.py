"""``deepinfer bench`` on the shipped checkpoint and backend cpu: structure and accounting, never times."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path

import jsonschema
import pytest
import torch

from deepinfer_bench import memory, opening
from deepinfer_bench.disturbances import COLLECT_EVERY
from deepinfer_bench.memory import weight_bytes
from deepinfer_bench.plugin import deepinfer_cli_commands
from deepinfer_bench.point import Plan, measure_point
from deepinfer_bench.report import schema
from deepinfer_bench.run import Bench
from deepinfer_bench.session import session
from deepinfer_bench.steady import SteadyRule
from deepinfer_bench.workload import Shape
from deepinfer_core import cli
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CapacityError, EngineError, InvalidParameter
from deepinfer_core.types import WeightSizes

TOML = Path(str(files("deepinfer_bench").joinpath("deepinfer.toml")))
QUICK = SteadyRule(block=1, within=0.5, most=2)
GRID = ["--batches", "1", "--prompts", "8", "--steps", "1", "--warm-up-rounds", "0"]


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith("DEEPINFER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr("deepinfer_bench.ceilings.WARM_SECONDS", 0.0)
    monkeypatch.setattr("deepinfer_bench.ceilings.COPY_BYTES", {"cpu": 1 << 20})
    monkeypatch.setattr("deepinfer_bench.ceilings.SQUARE", {"cpu": 64})


def config(**settings: object) -> EngineConfig:
    return EngineConfig.resolve({"backend": "cpu", **settings}, environ={})


def measured(shape: Shape, plan: Plan, **settings: object) -> dict:
    with session(config(**settings), [shape], plan, None, None, lambda line: None) as made:
        point = measure_point(made.bench, shape, made.prompts, plan, made.ceilings, lambda line: None)
        data = json.loads(json.dumps(made.report("decode" if plan.steps else "prefill", plan, [point])))
        assert made.bench.engine.num_live == 0
    jsonschema.validate(data, schema())
    return data


def failing(capsys, status: int, *arguments: str) -> str:
    assert cli.main(["bench", *arguments]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_manifest_and_hook_declare_the_same_command():
    [spec] = deepinfer_cli_commands()
    assert f'{{ name = "{spec.name}", summary = "{spec.help}" }}' in TOML.read_text("utf-8")


@pytest.mark.parametrize("overlap", [True, False])
def test_decode_point_has_both_segments_and_every_token_is_counted(overlap):
    plan = Plan(steps=4, warm_up_rounds=1, profile_steps=2, rule=QUICK)
    data = measured(Shape(2, 9, 0), plan, overlap=overlap)
    [point] = data["points"]
    prefill, decode = point["prefill"], point["decode"]
    assert (prefill["steps"], prefill["rows"]) == (1, 18)
    assert decode["steps"] == 4 == decode["kept"] + sum(decode["dropped"].values())
    assert decode["output_tokens"] == decode["rows"] == 2 * decode["kept"]
    assert (decode["acceptance"], point["warm_up"]["rounds"]) == (None, 1)
    assert decode["roofline"]["floor_share"] > 0
    assert {part["used"] for part in data["plugins"]} >= {"backend", "model", "sampler"}
    assert [len(point["arrivals"]), data["clock"]["name"]] == [2, "perf_counter"]
    assert point["profile"]["decode"]["longest"]
    assert point["profile"]["decode"]["device_idle_share"] is None


def test_collections_between_steps_drop_their_intervals_and_no_others():
    data = measured(Shape(1, 5, 0), Plan(steps=12, warm_up_rounds=0, gc_every=3, rule=QUICK))
    [point] = data["points"]
    decode = point["decode"]
    assert decode["dropped"] == {"gc": 4, "flush": 0, "shuffle": 0, "graph": 0, "other_kind": 0, "batch": 0}
    assert (decode["kept"], decode["output_tokens"]) == (8, 8)
    assert point["collections"]["count"] >= 4
    assert data["method"]["garbage_collection"].startswith("off while steps are measured, one full collection")
    assert COLLECT_EVERY == 1000


def test_drafts_are_told_with_what_was_accepted_of_them():
    data = measured(Shape(2, 9, 3), Plan(steps=3, warm_up_rounds=0, rule=QUICK))
    [point] = data["points"]
    decode, drafts = point["decode"], point["decode"]["acceptance"]
    assert len(drafts["verified"]) == 3
    assert decode["rows"] == 2 * 4 * decode["kept"]
    assert drafts["tokens_per_request_step"] == pytest.approx(1 + sum(drafts["accepted"]) / 6, abs=0.4)
    assert decode["full_acceptance"]["tokens_per_s"] == pytest.approx(4 * 2 * decode["kept"] / decode["seconds"])
    assert decode["full_acceptance"]["tokens_per_s"] >= decode["tokens_per_s"]
    assert "every draft is accepted" in decode["full_acceptance"]["assumption"]


def test_prefill_point_has_its_rounds_and_no_decode_segment():
    data = measured(
        Shape(2, 40, 0), Plan(steps=0, rounds=3, warm_up_rounds=0, profile_steps=1), max_num_batched_tokens=256
    )
    [point] = data["points"]
    assert point["decode"] is None
    assert len(point["prefill"]["round_ms"]) == 3
    assert point["prefill"]["rows"] == 3 * 2 * 40
    assert point["prefill"]["output_tokens"] == 6


def test_interruption_rises_between_steps_and_leaves_the_engine_idle(monkeypatch):
    plan, shape = Plan(steps=50, warm_up_rounds=0, rule=QUICK), Shape(1, 5, 0)
    with session(config(), [shape], plan, None, None, lambda line: None) as made:
        step, count = made.bench.engine.step, iter(range(100))
        monkeypatch.setattr(made.bench.engine, "step", lambda: step() if next(count) < 6 else _interrupt())
        with pytest.raises(KeyboardInterrupt):
            measure_point(made.bench, shape, made.prompts, plan, made.ceilings, lambda line: None)
        monkeypatch.undo()
        assert made.bench.engine.num_live == 0
        assert made.bench.log not in made.bench.engine.meter.observers


def _interrupt():
    raise KeyboardInterrupt


def test_layers_run_on_random_weights_with_the_sizes_of_the_model():
    plan, shape = Plan(steps=2, warm_up_rounds=0, rule=QUICK), Shape(1, 5, 2)
    with session(config(load_format="dummy"), [shape], plan, 6, None, lambda line: None) as made:
        assert made.bench.llm.assembly.model.config.num_hidden_layers == 6
        assert made.bench.llm.assembly.model.config.hidden_size == 256
        point = measure_point(made.bench, shape, made.prompts, plan, made.ceilings, lambda line: None)
    assert point["decode"]["kept"] + sum(point["decode"]["dropped"].values()) == 2


def test_weights_that_do_not_fit_are_refused_with_what_they_need(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda backend, device: 1 << 20)
    plan, shape = Plan(steps=2), Shape(1, 5, 0)
    opened = session(config(load_format="dummy", kv_memory=64 << 20), [shape], plan, 6, None, lambda line: None)
    with pytest.raises(CapacityError) as caught, opened:
        pass
    assert caught.value.details["needed_bytes"] > 64 << 20
    assert "are free on cpu" in caught.value.what
    assert caught.value.remedy.startswith("give fewer --layers")


def test_memory_that_runs_out_while_weights_are_made_is_told_as_such(monkeypatch):
    def assemble(*args, **kwargs):
        try:
            raise torch.OutOfMemoryError("tried to allocate")
        except torch.OutOfMemoryError as exc:
            raise EngineError("load failed") from exc

    monkeypatch.setattr(opening, "assemble", assemble)
    opened = session(config(load_format="dummy"), [Shape(1, 5, 0)], Plan(steps=2), 6, None, lambda line: None)
    with pytest.raises(CapacityError, match="cpu has too little memory for weights and caches of at least 0"), opened:
        pass


def test_backend_cpu_needs_four_bytes_a_value_and_others_what_is_stored():
    sizes = WeightSizes(values=100, num_bytes=60)
    assert (weight_bytes("cpu", sizes), weight_bytes("cuda", sizes)) == (400, 60)


@pytest.mark.parametrize(
    ("shape", "settings", "error", "words"),
    [
        (Shape(1, 2000, 0), {}, InvalidParameter, "a sequence has at most 2048"),
        (Shape(64, 400, 0), {"kv_memory": 1 << 20}, CapacityError, "do not fit into the caches"),
    ],
)
def test_shape_that_does_not_fit_is_refused_before_a_step(shape, settings, error, words):
    with pytest.raises(error, match=words), session(config(**settings), [shape], Plan(), None, None, print):
        pass


def test_command_prints_one_json_object_and_writes_the_same(tmp_path, capsys):
    out, table = tmp_path / "r.json", tmp_path / "r.csv"
    arguments = ["--batch", "1", "--prompt", "8", "--rounds", "1", "--warm-up-rounds", "0", "--no-profile"]
    arguments += ["--out", str(out), "--csv", str(table), "--seed", "3", "--backend", "cpu"]
    assert cli.main(["--json", "bench", "prefill", *arguments]) == 0
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, schema())
    assert data == json.loads(out.read_text())
    assert (data["command"], data["seed"], data["settings"]["backend"]) == (
        "prefill",
        3,
        {"value": "cpu", "from": "flag"},
    )
    assert table.read_text().count("\n") == 2


def test_drafts_of_the_settings_hold_unless_others_are_given(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DEEPINFER_DRAFT_TOKENS", "2")
    quick = ["--backend", "cpu", "--warm-up-rounds", "0", "--out", str(tmp_path / "s")]
    assert cli.main(["bench", "sweep", "--batches", "1", "--prompts", "8", "--steps", "1", *quick]) == 0
    assert "1 request of 8 tokens, 2 drafts\n" in capsys.readouterr().out


def test_figures_are_printed_although_their_file_cannot_be_written(capsys):
    arguments = ["--prompt", "8", "--rounds", "1", "--warm-up-rounds", "0", "--no-profile", "--backend", "cpu"]
    assert cli.main(["bench", "prefill", *arguments, "--out", "/dev/full"]) == 74
    captured = capsys.readouterr()
    assert "1 request of 8 tokens\n  prefill: step p50" in captured.out
    assert "E_OUTPUT: cannot write /dev/full\n  reason: No space left on device" in captured.err


def test_sweep_goes_on_where_it_was_and_prints_all_points(tmp_path, capsys):
    folder = str(tmp_path / "s")
    assert cli.main(["bench", "sweep", *GRID, "--out", folder, "--backend", "cpu"]) == 0
    capsys.readouterr()
    grown = [*GRID, "--batches", "1,2", "--out", folder, "--backend", "cpu", "--json"]
    assert cli.main(["bench", "sweep", *grown]) == 0
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    jsonschema.validate(data, schema())
    assert [point["name"] for point in data["points"]] == ["b1-p8-k0", "b2-p8-k0"]
    assert f"1 of 2 points are in {folder} already" in captured.err
    assert "b1-p8-k0: prefill" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["decode", "--batch", "0"], "E_PARAM: batch is 0; allowed: an integer from 1 to 65536"),
        (["decode", "--batch", "x"], "E_USAGE: invalid value for '--batch': 'x' is not a valid integer"),
        (["decode", "--draft-tokens", "16"], "E_PARAM: draft_tokens is 16; allowed: an integer from 0 to 15"),
        (["sweep", "--out", "s", "--batches", "1,,2"], "E_PARAM: batches is '1,,2'; allowed: integers from 1 to 65536"),
        (["sweep", "--out", "s", "--prompts", "-1"], "E_PARAM: prompts is '-1'; allowed: integers from 1 to 16777216"),
        (["sweep"], "E_USAGE: missing option '--out'"),
        (["decode", "--layers", "6"], "E_CONFIG: --layers 6 needs random weights"),
        (["decode", "--layers", "5", "--load-format", "dummy"], "E_CONFIG: 5 layers: at least 6 hold one of each kind"),
        (["decode", "--out", "absent/r.json"], "E_OUTPUT: cannot write absent/r.json"),
        (["decode", "--csv", "."], "E_OUTPUT: cannot write ."),
        (["decode", "--out", "a" * 300 + "/r.json"], f"E_OUTPUT: cannot write {'a' * 300}/r.json"),
        (["decode", "--plots", "/dev/null/p"], "E_OUTPUT: cannot write /dev/null/p"),
        (["decode", "--text", "absent"], "E_INPUT: cannot read the text absent"),
        (["decode", "--model", "absent"], "E_MODEL_MISSING: no such folder: absent"),
        (["sweep", "--out", ""], "E_PARAM: out is ''; allowed: the path of a folder"),
        ([], "E_USAGE: deepinfer bench needs a command\n  reason: commands: decode, prefill, sweep"),
        (["decode", "--out", "a", "--csv", "./a"], "E_USAGE: --out and --csv are both a"),
        (["walk"], "E_USAGE: no such command 'walk'"),
    ],
)
def test_wrong_use_is_told_and_nothing_runs(capsys, monkeypatch, tmp_path, arguments, line):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Bench, "__enter__", lambda self: pytest.fail("it ran"))
    status = {"E_MODEL_MISSING": 4, "E_OUTPUT": 74}.get(line.partition(":")[0], 2)
    errors = failing(capsys, status, *arguments)
    assert f"deepinfer: {line}" in errors
    assert "remedy: " in errors or "; allowed: " in errors
