"""Wishes of threads about waiting for the device, and the place that an unwanted wait is told with."""

import threading

import pytest
import torch

from deepinfer_core.errors import HiddenSync
from deepinfer_cuda.device.sync_guard import AllowSync, NoSync, SyncWishes

COMPLAINT = "called a synchronizing CUDA operation"


@pytest.fixture
def modes():
    return []


@pytest.fixture
def wishes(modes):
    return SyncWishes(modes.append)


def test_the_wish_on_top_counts(wishes, modes):
    with NoSync(wishes):
        with AllowSync(wishes), NoSync(wishes):
            pass
        with NoSync(wishes):
            pass
    assert modes == ["error", "default", "error", "default", "error", "default"]


def test_a_thread_that_allows_lifts_the_ban_of_all_and_a_thread_without_a_wish_does_not(wishes, modes):
    entered, leave = threading.Event(), threading.Event()

    def other():
        with AllowSync(wishes):
            entered.set()
            leave.wait(5)

    with NoSync(wishes):
        assert modes == ["error"]
        thread = threading.Thread(target=other)
        thread.start()
        entered.wait(5)
        assert modes == ["error", "default"]
        leave.set()
        thread.join()
        assert modes == ["error", "default", "error"]
    assert modes == ["error", "default", "error", "default"]


def test_two_threads_that_forbid_share_the_mode(wishes, modes):
    def other():
        with NoSync(wishes):
            pass

    with NoSync(wishes):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert modes == ["error", "default"]


def test_a_wait_is_told_with_its_place(wishes):
    def complain(tensor):
        raise RuntimeError(COMPLAINT)

    row = torch.ones(2)
    with NoSync(wishes), pytest.raises(HiddenSync, match=r"complain at .*test_cuda_sync_guard.py:\d+ waits") as caught:
        torch.overrides.handle_torch_function(complain, (row,), row)
    assert caught.value.details["place"].endswith(f":{caught.traceback[0].lineno + 1}")


def test_other_errors_of_torch_stay_what_they_are(wishes, modes):
    with NoSync(wishes), pytest.raises(RuntimeError, match="shape"):
        torch.ones(2).view(3)
    with pytest.raises(ZeroDivisionError), NoSync(wishes):
        raise ZeroDivisionError
    assert modes[-1] == "default"
