"""Tests marked ``cuda`` are skipped where no device can be used, with the reason of the probe, and counted."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest

from deepinfer_core.types import ProbeReport
from deepinfer_cuda import probe as probing

REASON = "found Tesla T4 (sm_75); kernels exist for sm_90"


@pytest.fixture
def hooks(monkeypatch):
    """The hooks of the repository, on a machine whose device has no kernels."""
    spec = importlib.util.spec_from_file_location("root_conftest", Path(__file__).parents[3] / "conftest.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    report = ProbeReport(present=True, usable=False, reasons=(REASON,))
    monkeypatch.setattr(probing, "probe", lambda host: report)
    return module


class Item:
    def __init__(self, *markers):
        self.markers, self.added = markers, []

    def get_closest_marker(self, name):
        return name if name in self.markers else None

    def add_marker(self, marker):
        self.added.append(marker)


def test_marked_tests_are_skipped_with_the_reason_and_others_run(hooks):
    marked, plain = Item("cuda"), Item("slow")
    hooks.pytest_collection_modifyitems([marked, plain])
    [skip] = marked.added
    assert skip.name == "skip"
    assert skip.kwargs == {"reason": f"no device of backend cuda: {REASON}"}
    assert plain.added == []


def test_summary_counts_what_was_skipped_and_says_why(hooks):
    skipped = [SimpleNamespace(longrepr=("file", 1, f"Skipped: no device of backend cuda: {REASON}"))] * 3
    told = []
    reporter = SimpleNamespace(
        stats={"skipped": skipped, "passed": [SimpleNamespace(keywords={"cuda": 1})]}, write_line=told.append
    )
    hooks.pytest_terminal_summary(reporter)
    assert told == [f"cuda: 1 run, 3 skipped ({REASON})"]
