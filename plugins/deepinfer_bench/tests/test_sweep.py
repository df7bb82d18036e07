"""A sweep without an engine: what is kept, what is run again, and what is refused."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
from bench_reports import point, whole

from deepinfer_bench.report import as_json
from deepinfer_bench.sweep import SweepFolder, grid, run_sweep
from deepinfer_bench.workload import Shape
from deepinfer_core.errors import CommandUsageError, ConfigError, EngineError, InvalidInputFile, OutputError

PLAN = {"format": "deepinfer-bench 1", "method": {"decode_steps": 10}, "settings": {"backend": "cpu"}}
SHAPES = grid([1, 2], [8], [0, 3])


class Bed:
    """Runs a sweep; each measured point is noted, and may do something else instead."""

    def __init__(self, path, instead=None):
        self.path, self.instead = path, instead or {}
        self.engines, self.measured, self.lines = [], [], []

    @contextmanager
    def engine(self, shapes):
        self.engines.append([shape.name for shape in shapes])
        yield self

    def measure(self, engine, shape):
        self.measured.append(shape.name)
        if shape.name in self.instead:
            raise self.instead[shape.name]
        return point(shape.name)

    def run(self, shapes=SHAPES, plan=PLAN):
        with SweepFolder.opened(self.path, plan) as folder:
            report = lambda engine, one: whole(one, command="sweep")  # noqa: E731
            return run_sweep(folder, shapes, self.engine, self.measure, report, self.lines.append)


def files(path):
    return sorted(entry.name for entry in path.iterdir() if entry.name != ".lock")


def test_grid_has_every_combination_once_with_most_drafts_first():
    names = [shape.name for shape in grid([2, 1, 2], [8, 4], [0, 3])]
    assert names == [
        *("b1-p4-k3", "b1-p8-k3", "b2-p4-k3", "b2-p8-k3"),
        *("b1-p4-k0", "b1-p8-k0", "b2-p4-k0", "b2-p8-k0"),
    ]


def test_sweep_writes_a_file_for_each_point_and_a_table(tmp_path):
    bed = Bed(tmp_path / "deep" / "sweep")
    assert bed.run() == 0
    assert bed.engines == [["b1-p8-k3", "b2-p8-k3"], ["b1-p8-k0", "b2-p8-k0"]]
    assert files(bed.path) == [
        *("b1-p8-k0.json", "b1-p8-k3.json", "b2-p8-k0.json", "b2-p8-k3.json"),
        *("points.csv", "sweep.json"),
    ]
    assert (bed.path / "points.csv").read_text().count("\n") == 5


def test_interrupted_sweep_keeps_its_points_and_goes_on_behind_them(tmp_path):
    bed = Bed(tmp_path, {"b2-p8-k3": KeyboardInterrupt()})
    with pytest.raises(KeyboardInterrupt):
        bed.run()
    assert files(tmp_path) == ["b1-p8-k3.json", "points.csv", "sweep.json"]
    again = Bed(tmp_path)
    assert again.run() == 0
    assert again.measured == ["b2-p8-k3", "b1-p8-k0", "b2-p8-k0"]
    assert again.lines[0] == f"1 of 4 points are in {tmp_path} already"


def test_finished_sweep_opens_no_engine_and_its_table_is_whole(tmp_path):
    Bed(tmp_path).run()
    (tmp_path / "points.csv").unlink()
    again = Bed(tmp_path)
    again.run()
    assert (again.engines, again.measured) == ([], [])
    assert (tmp_path / "points.csv").read_text().count("\n") == 5


def test_what_a_killed_run_left_is_no_hindrance_and_goes(tmp_path):
    (tmp_path / ".sweep.json.1234abcd.part").write_text("half")
    Bed(tmp_path).run()
    assert not list(tmp_path.glob(".*.part"))


def test_grid_may_grow(tmp_path):
    Bed(tmp_path).run()
    again = Bed(tmp_path)
    again.run(grid([1, 2, 4], [8], [0, 3]))
    assert again.measured == ["b4-p8-k3", "b4-p8-k0"]


def test_point_that_fails_is_written_and_the_next_gets_a_new_engine(tmp_path):
    bed = Bed(tmp_path, {"b1-p8-k3": EngineError("out of luck")})
    assert bed.run() == 1
    assert bed.engines == [["b1-p8-k3", "b2-p8-k3"], ["b2-p8-k3"], ["b1-p8-k0", "b2-p8-k0"]]
    [failed] = json.loads((tmp_path / "b1-p8-k3.json").read_text())["points"]
    assert failed["error"]["message"] == "out of luck"
    again = Bed(tmp_path)
    assert again.run() == 0
    assert again.measured == ["b1-p8-k3"]


def test_sweep_of_another_kind_is_refused_by_what_differs(tmp_path):
    Bed(tmp_path).run()
    other = {**PLAN, "method": {"decode_steps": 11}, "settings": {"backend": "cpu", "kv_memory": "1"}}
    with pytest.raises(ConfigError) as caught:
        Bed(tmp_path).run(plan=other)
    assert caught.value.what == f"the sweep in {tmp_path} was made with method.decode_steps 10, this one has 11"
    assert [item[0] for item in caught.value.details["differences"]] == ["method.decode_steps", "settings.kv_memory"]


def test_two_sweeps_do_not_share_a_folder_at_once(tmp_path):
    with SweepFolder.opened(tmp_path, PLAN), pytest.raises(CommandUsageError, match="another sweep writes to"):
        Bed(tmp_path).run()
    Bed(tmp_path).run()


def test_folder_of_something_else_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(CommandUsageError, match=r"holds thesis.tex, and no sweep"):
        Bed(tmp_path).run()
    assert files(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"format": "deepinfer-bench 1", "points": []}', "\xff", "[" * 100_000]
)
def test_damaged_file_of_a_point_is_named_before_anything_is_measured(tmp_path, text):
    Bed(tmp_path).run()
    (tmp_path / "b1-p8-k3.json").write_bytes(text.encode("latin-1"))
    again = Bed(tmp_path)
    with pytest.raises(InvalidInputFile, match=r"cannot go on with .*b1-p8-k3.json"):
        again.run()
    assert again.measured == []


def test_report_that_lacks_something_or_is_of_another_point_is_named(tmp_path):
    Bed(tmp_path).run()
    path = tmp_path / "b1-p8-k3.json"
    data = json.loads(path.read_text())
    del data["points"][0]["decode"]["step_ms"]["p50"]
    path.write_text(json.dumps(data))
    with pytest.raises(InvalidInputFile) as caught:
        Bed(tmp_path).run()
    assert caught.value.reason == "$.points[0].decode.step_ms: 'p50' is a required property"
    path.write_text((tmp_path / "b1-p8-k0.json").read_text())
    with pytest.raises(InvalidInputFile) as caught:
        Bed(tmp_path).run()
    assert caught.value.reason == "it is no report of that point alone"


def test_damaged_plan_is_named(tmp_path):
    (tmp_path / "sweep.json").write_text("nonsense")
    with pytest.raises(InvalidInputFile, match=r"cannot go on with .*sweep.json"):
        Bed(tmp_path).run()


def test_folder_that_cannot_be_made_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        Bed(tmp_path / "file" / "sweep").run()
    with pytest.raises(OutputError, match="it is no folder") as caught:
        Bed(tmp_path / "file").run()
    assert caught.value.remedy == "give a new folder in a place that can be written"


def test_full_disk_ends_the_sweep_and_leaves_whole_files(tmp_path, monkeypatch):
    bed = Bed(tmp_path)
    kept = SweepFolder.keep

    def keep(self, name, report):
        if name == "b2-p8-k3":
            monkeypatch.setattr("os.replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left")))
        kept(self, name, report)

    monkeypatch.setattr(SweepFolder, "keep", keep)
    with pytest.raises(OutputError, match="cannot write"):
        bed.run()
    monkeypatch.undo()
    assert files(tmp_path) == ["b1-p8-k3.json", "points.csv", "sweep.json"]
    json.loads((tmp_path / "b1-p8-k3.json").read_text())


def test_stored_points_come_in_a_fixed_order(tmp_path):
    bed = Bed(tmp_path)
    bed.run()
    with SweepFolder.opened(tmp_path, PLAN) as folder:
        assert [one["name"] for one in folder.points] == ["b1-p8-k0", "b2-p8-k0", "b1-p8-k3", "b2-p8-k3"]
        assert as_json(folder.reports["b1-p8-k0"]) == (tmp_path / "b1-p8-k0.json").read_text()
    assert Shape(1, 8, 3).name == "b1-p8-k3"
