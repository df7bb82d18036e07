"""Whatever the code under a time limit makes of the interruption, it ends with the limit's own failure."""

from __future__ import annotations

import signal
import time
from contextlib import suppress

import pytest

from deepinfer_core.conformance.time_limit import TimeLimitReached, time_limit

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no interval timers on this system")

LIMIT_S = 0.1
REASON = r"^the test does not come to an end\n  where: .+\.py:\d+\n  limit: 0\.1 s \(--time-limit\)$"


@pytest.fixture(autouse=True)
def no_other_timer() -> None:
    """The suite's own limit on a test uses the same timer, and the kit's would stand back."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)


def wait() -> None:
    """Longer than the limit."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pass


def test_time_limit_block_that_hangs_is_ended() -> None:
    with pytest.raises(TimeLimitReached, match=REASON), time_limit(LIMIT_S):
        wait()


def test_time_limit_turned_into_another_error_is_told_as_itself() -> None:
    """So does the guard around a plugin's import: the plugin would be blamed for an error that it did not raise."""

    def guarded() -> None:
        try:
            wait()
        except BaseException as exc:
            raise ValueError("the plugin failed") from exc

    with pytest.raises(TimeLimitReached, match=REASON) as caught, time_limit(LIMIT_S):
        guarded()
    assert isinstance(caught.value.__context__, ValueError)


def test_time_limit_caught_by_the_block_fails_all_the_same() -> None:
    with pytest.raises(TimeLimitReached, match=REASON), time_limit(LIMIT_S), suppress(BaseException):
        wait()


def test_time_limit_not_reached_leaves_timer_handler_and_errors_alone() -> None:
    before = signal.getsignal(signal.SIGALRM)

    def fail() -> None:
        raise KeyError(signal.getitimer(signal.ITIMER_REAL)[0] > 0)

    with pytest.raises(KeyError, match="True"), time_limit(60):
        fail()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_time_limit_reached_puts_timer_and_handler_back() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TimeLimitReached), time_limit(LIMIT_S):
        wait()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_time_limit_of_zero_is_none() -> None:
    with time_limit(0):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
