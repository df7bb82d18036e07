"""Compiled kernels launched: results, streams, graphs, empty tensors, and processes that share the cache on disk."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from doubling_kernel import doubled

pytestmark = pytest.mark.cuda


def pair(cuda, rows=7):
    x = torch.randn(rows, 256, device=cuda)
    return x, torch.full_like(x, float("nan"))


@pytest.mark.parametrize("rows", [1, 7, 4096])
def test_a_kernel_computes_and_writes_every_value(cuda, rows):
    x, y = pair(cuda, rows)
    doubled(width=256)(x, y)
    assert torch.equal(y, 2 * x)


def test_a_kernel_launches_on_the_current_stream(cuda):
    x, y = pair(cuda)
    launch = doubled(width=256)
    launch(x, torch.empty_like(y))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        launch(x, y)
    assert not stream.query()  # it waits behind the sleep
    stream.synchronize()
    assert torch.equal(y, 2 * x)


def test_a_kernel_is_captured_and_replayed(cuda):
    x, y = pair(cuda)
    doubled(width=256)(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled(width=256)(x, y)
    x.copy_(torch.randn_like(x))
    y.fill_(float("nan"))
    graph.replay()
    assert torch.equal(y, 2 * x)


def test_a_tensor_of_the_host_is_refused(cuda):
    x, y = pair(cuda)
    with pytest.raises(RuntimeError, match="device_type mismatch"):
        doubled(width=256)(x.cpu(), y)


CHILD = """
import torch
from doubling_kernel import doubled
x = torch.randn(5, 64, device="cuda")
y = torch.full_like(x, float("nan"))
doubled(width=64, threads=32)(x, y)
print(torch.equal(y, 2 * x))
"""


def test_processes_that_compile_at_the_same_time_leave_one_entry(tmp_path):
    tests = str(Path(__file__).parents[1])
    environment = {**os.environ, "DEEPINFER_CUDA_CACHE": str(tmp_path)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (tests, environment.get("PYTHONPATH"))))
    command = [sys.executable, "-c", CHILD]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(3)]
    assert [process.communicate(timeout=110)[0] for process in running] == ["True\n"] * 3
    assert len(list(tmp_path.glob("tilelang-*/cuda-*/sm_*/**/executable.so"))) == 1
