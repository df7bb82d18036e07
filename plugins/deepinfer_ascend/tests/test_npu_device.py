"""The backend as it runs on a device: on one of torch's, called npu, whose tensors do not mix with those of the host.

The vendor's libraries are stood for by their equivalents. It shows that no tensor of the host strays into an op, that
the branches for a device are right, and which ops make fp64 tensors, which the chip has not. It builds for a minute.
"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.emulated,
    pytest.mark.skipif(find_spec("tilelang") is None, reason="TileLang is not installed"),
    pytest.mark.skipif(not (shutil.which("ninja") and shutil.which("c++")), reason="needs ninja and a C++ compiler"),
]
SCRIPT = Path(__file__).parent / "npu" / "run_on_npu.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("npu")
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, SCRIPT, folder, folder / "report.json"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads((folder / "report.json").read_text())


@pytest.mark.timeout(900)
def test_ops_at_sizes_of_kernels_are_those_of_cpu(report):
    assert report["differences"] == dict.fromkeys(report["differences"], 0.0)
    assert len(report["calls"]) >= 9


@pytest.mark.timeout(900)
def test_the_engine_gives_the_tokens_of_cpu(report):
    assert report["tokens"] == report["tokens of cpu"]


@pytest.mark.timeout(900)
def test_kernels_of_ours_are_launched_with_tensors_of_the_device(report):
    assert report["kernels"]["differences"] == dict.fromkeys(report["kernels"]["differences"], 0.0)
    assert report["kernels"]["ran"] == ["rms_rows", "ring_indices"]


@pytest.mark.timeout(900)
def test_inputs_and_results_travel_on_streams_of_their_own(report):
    assert report["copies"] >= 2 * len(report["tokens"])


@pytest.mark.timeout(900)
def test_no_op_of_a_step_makes_fp64_tensors(report):
    """None of the ops of a step: the chip has no fp64."""
    assert report["doubles"] == {}
