"""The report as JSON, table, text and pictures."""

from __future__ import annotations

import copy
import csv
import json
import sys
from pathlib import Path

import jsonschema
import pytest
from bench_reports import FACTS, point, whole

from deepinfer_bench import plots
from deepinfer_bench.point import Plan
from deepinfer_bench.report import COLUMNS, as_csv, as_json, as_text, report, schema, write
from deepinfer_bench.session import check_outputs
from deepinfer_bench.sweep import failed_point
from deepinfer_bench.workload import Shape
from deepinfer_core.errors import EngineError, LibraryMissing, OutputError
from deepinfer_core.plugins.emulation import BANNER


def problems(data) -> list[str]:
    return [error.message for error in jsonschema.Draft202012Validator(schema()).iter_errors(data)]


def test_schema_is_one_and_takes_a_report():
    jsonschema.Draft202012Validator.check_schema(schema())
    assert problems(json.loads(as_json(whole(point())))) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("contracts"),
        lambda data: data["points"][0]["decode"]["dropped"].pop("flush"),
        lambda data: data["points"][0]["decode"].pop("tokens_per_s"),
        lambda data: data["points"][0]["decode"]["full_acceptance"].pop("assumption"),
        lambda data: data["points"][0].update(surprise=1),
        lambda data: data.update(format="deepinfer-bench 2"),
    ],
)
def test_schema_refuses_a_report_that_lacks_what_makes_it_honest(damage):
    data = copy.deepcopy(whole(point()))
    damage(data)
    assert problems(data)


def test_point_that_failed_is_in_the_schema_the_table_and_the_text():
    failed = failed_point(Shape(1, 8, 0), EngineError("the machine stopped", reason="r", remedy="s"))
    data = whole(failed)
    assert problems(json.loads(as_json(data))) == []
    [row] = csv.DictReader(as_csv([failed]).splitlines())
    assert (row["point"], row["tokens_per_s"], row["error"]) == ("b1-p8-k0", "", "the machine stopped")
    assert as_text(data).endswith("1 request of 8 tokens\n  failed: E_ENGINE: the machine stopped\n")


def test_table_has_a_line_for_each_point_and_every_column():
    rows = list(csv.reader(as_csv([point("b1-p8-k0"), point("b2-p8-k0")]).splitlines()))
    assert rows[0] == [name for name, _ in COLUMNS]
    assert [row[0] for row in rows[1:]] == ["b1-p8-k0", "b2-p8-k0"]
    named = dict(zip(rows[0], rows[1], strict=True))
    assert (named["step_p50_ms"], named["steady"], named["device_idle_share"]) == ("10", "yes", "")


def test_text_has_the_assumption_beside_the_measured_acceptance_and_the_real_rate():
    assert as_text(whole(point())) == (
        "Toy (random weights) on cpu: abacus, load 0.1\n"
        "ceilings of this run: copy 10.0 GB/s, matmul 0.1 TFLOP/s (float32)\n"
        "\n"
        "2 requests of 40 tokens, 3 drafts\n"
        "  prefill: step p50 10 ms, p90 10, p99 10; 4 of 4 steps count\n"
        "    800 prompt tokens/s; 10.0% of the roofline\n"
        "  decode: step p50 10 ms, p90 10, p99 10; 4 of 4 steps count\n"
        "    steady after 16 steps; last quarter over first 1\n"
        "    600 tokens/s, 300 for each request; 10.0% of the roofline\n"
        "    800 tokens/s if every draft were accepted; accepted were 50%, 1.5 a step\n"
        "    outside model and sampler 100.0% of a step\n"
    )


def test_emulation_is_marked_in_report_table_text_and_pictures(tmp_path):
    made = report("decode", {**FACTS, "emulated": True}, Plan().as_record(), 0, "random token ids", None, [point()])
    assert problems(json.loads(as_json(made))) == []
    assert made["emulated"] is made["points"][0]["emulated"] is True
    [row] = csv.DictReader(as_csv(made["points"]).splitlines())
    assert row["emulated"] == "yes"
    assert as_text(made).splitlines()[1] == BANNER
    pytest.importorskip("matplotlib", reason="the extra plots of deepinfer-bench is not installed")
    assert all(BANNER in path.read_text("utf-8") for path in plots.draw(made["points"], tmp_path))


def test_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write(path, "old")
    monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OutputError, match="cannot write"):
        write(path, "new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.json"]
    assert path.read_text() == "old"


def test_pictures_are_drawn_of_what_was_measured(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plots of deepinfer-bench is not installed")
    drawn = plots.draw([point("b1-p8-k0"), point("b4-p8-k0")], tmp_path / "new")
    assert [path.name for path in drawn] == list(plots.NAMES)
    text = drawn[0].read_text("utf-8")
    assert all(word in text for word in ("tokens/s of one request", "8 tokens, 0 drafts", "tokens/s of all"))
    assert sorted(entry.name for entry in (tmp_path / "new").iterdir()) == sorted(plots.NAMES)


def test_pictures_of_nothing_are_not_drawn(tmp_path):
    pytest.importorskip("matplotlib", reason="the extra plots of deepinfer-bench is not installed")
    assert plots.draw([failed_point(Shape(1, 8, 0), EngineError("no"))], tmp_path) == []


def test_pictures_without_matplotlib_name_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(LibraryMissing) as caught:
        plots.require_matplotlib()
    assert caught.value.remedy == "pip install 'deepinfer-bench[plots]', or leave --plots out"


def test_device_is_no_file_that_is_replaced_in_its_folder(monkeypatch, tmp_path):
    """/dev belongs to root, and everybody writes to what is in it."""
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "mine").mkdir()
    (tmp_path / "to-mine").symlink_to(tmp_path / "mine" / "report.json")
    monkeypatch.setattr("os.access", lambda folder, mode: str(folder) == str(tmp_path / "mine"))
    check_outputs(Path("/dev/null"), tmp_path / "to-mine", None)
    check_outputs(tmp_path / "link", tmp_path / "mine" / "table.csv", None)
    with pytest.raises(OutputError, match="cannot write"):
        check_outputs(tmp_path / "new", None, None)
