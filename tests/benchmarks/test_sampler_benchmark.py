"""The sampler benchmark at a small size: what it compares is the same work, and its report is whole."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sampler.py"


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sampler_benchmark", SCRIPT)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_benchmark_of_a_small_vocabulary_reports_every_case(benchmark, tmp_path, capsys):
    threads = torch.get_num_threads()
    try:
        path = tmp_path / "report.json"
        assert benchmark.main(["--rows", "1,3", "--vocab", "300", "--repeat", "1", "--json", str(path)]) == 0
    finally:
        torch.set_num_threads(threads)
    report = json.loads(path.read_text())
    assert set(report["cases"]) == {*benchmark.CASES, "grammar mask"}
    for row in report["cases"].values():
        assert set(row) == {"1", "3"}
        assert all(cell["ours_us"] > 0 and cell["ratio"] > 0 for cell in row.values())
    assert report["least_ratio"] == min(cell["ratio"] for row in report["cases"].values() for cell in row.values())
    assert "least ratio" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["plain", "min_p", "top_k", "top_p", "top_p and top_k", "temperature"])
def test_benchmark_paths_draw_from_the_same_tokens(benchmark, name):
    """Over many draws of one row both paths see the same set of tokens."""
    logits = (torch.randn(1, 12, generator=torch.Generator().manual_seed(4)) * 0.5).expand(3000, 12)
    values = {**benchmark.OPEN, **benchmark.CASES[name]}
    if values["top_k"] > 0:
        values["top_k"] = 3
    torch.manual_seed(1)
    ours = benchmark.CanonicalSampler(12).sample(logits, benchmark.inputs_of(3000, values))
    theirs, logprobs = benchmark.torch_path(logits, values)
    assert set(ours.sampled_ids.tolist()) == set(theirs.tolist())
    token = int(ours.sampled_ids[0])
    same = logprobs[theirs == token]
    torch.testing.assert_close(torch.tensor(ours.sampled_logprob[0]), same[0], rtol=1e-4, atol=1e-4)


def test_benchmark_masks_are_the_same(benchmark):
    logits = torch.randn(2, 70)
    words = torch.randint(-(2**31), 2**31, (2, 3), dtype=torch.int32)
    ours, theirs = logits.clone(), logits.clone()
    benchmark.forbid(ours, words, torch.arange(2), torch.arange(3), 0)
    benchmark.by_shifts(theirs, words)
    assert torch.equal(ours, theirs)
