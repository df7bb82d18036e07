"""Pools of graphs and captures that fail, with a torch that only writes down what it is asked."""

import gc
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from deepinfer_core.errors import GraphCaptureError
from deepinfer_cuda.device import graphs as module
from deepinfer_cuda.device.graphs import Graphs


class Driver:
    """Pools as torch keeps them: with the last graph of a pool its name is refused."""

    def __init__(self) -> None:
        self.users: dict[int, int] = {}
        self.recording: set[int] = set()
        self.is_captured = False
        self.fails_at = ""
        self.used: list[int] = []

    def handle(self) -> int:
        return len(self.users) + len(self.used) + 1

    def begin(self, pool: int) -> None:
        self.is_captured = True  # the generators, before anything else
        if self.users.get(pool) == 0:
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")
        self.users[pool] = self.users.get(pool, 0) + 1
        self.recording.add(pool)
        if self.fails_at == "begin":
            raise RuntimeError("the driver does not begin")

    def end(self, pool: int) -> None:
        self.recording.discard(pool)
        self.is_captured = False

    def end_allocation(self, index: int, pool: int) -> None:
        if pool not in self.recording:
            raise RuntimeError("not recording to this pool")
        self.recording.discard(pool)

    def release(self, index: int, pool: int) -> None:
        self.users[pool] -= 1


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()

    class Graph:
        ended = False

        def capture_begin(self, pool: int | None = None, capture_error_mode: str = "") -> None:
            self.pool = 1000 + len(made.users) if pool is None else pool
            failing, made.fails_at = made.fails_at, "" if pool is None else made.fails_at
            made.begin(self.pool)
            made.fails_at = failing
            made.used.append(self.pool)

        def capture_end(self) -> None:
            made.end(self.pool)
            self.ended = True

        def replay(self) -> None:
            return None

        def reset(self) -> None:
            if self.ended:  # torch gives a pool back where a capture has ended
                made.users[self.pool] -= 1
                self.ended = False

        def __del__(self) -> None:
            self.reset()

    monkeypatch.setattr(module.torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(module.torch.cuda, "graph_pool_handle", made.handle)
    monkeypatch.setattr(module.torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", made.end_allocation, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", made.release, raising=False)
    return made


@pytest.fixture
def graphs(driver: Driver) -> Graphs:
    stream = SimpleNamespace(wait_stream=lambda other: None)
    return Graphs(SimpleNamespace(device=torch.device("cpu"), capture=stream, compute=stream))  # type: ignore[arg-type]


def test_graphs_that_live_together_share_a_pool(driver: Driver, graphs: Graphs) -> None:
    held = [graphs.capture(lambda: None) for _ in range(3)]
    assert len(set(driver.used)) == 1
    assert driver.users[driver.used[0]] == len(held)


def test_behind_the_last_graph_of_a_pool_another_one_is_taken(driver: Driver, graphs: Graphs) -> None:
    for _ in range(3):
        held = [graphs.capture(lambda: None) for _ in range(2)]
        del held
        gc.collect()
    assert len(driver.used) == 6
    assert len(set(driver.used)) == 3
    assert not any(driver.users.values())


@pytest.mark.parametrize("began", [True, False], ids=["with its pool", "before its pool"])
def test_a_capture_that_does_not_begin_is_cleaned_up(driver: Driver, graphs: Graphs, began: bool) -> None:
    held = graphs.capture(lambda: None)
    pool = driver.used[0]
    if began:
        driver.fails_at = "begin"
    else:
        driver.users[pool] = 0  # as if torch had let it go before us
    with pytest.raises(GraphCaptureError, match="cannot be captured"):
        graphs.capture(lambda: None)
    driver.fails_at = ""
    assert not driver.is_captured
    assert not driver.recording
    assert driver.users[pool] == (1 if began else 0)
    later = graphs.capture(lambda: None)
    assert driver.used[-1] != pool
    held()
    later()
    driver.users[pool] = 1
