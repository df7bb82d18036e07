"""Import the installed ``deepinfer_core`` first: in importlib mode the folder of that name would shadow it.

Tests marked ``cuda`` are skipped, with the reason of the probe, where backend ``cuda`` cannot be used; the summary says
how many.
"""

from __future__ import annotations

import functools
import platform
import signal
import sys

import pytest

import deepinfer_core  # noqa: F401

# A job that a shell starts in the background inherits an ignored SIGINT, and so would every process of the tests: those
# about Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("cuda")]
    absent = no_cuda() if marked else ""
    for item in marked if absent else ():
        item.add_marker(pytest.mark.skip(reason=f"no device of backend cuda: {absent}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = terminalreporter.stats.get("skipped", [])
    skipped = [report for report in told if "no device of backend cuda" in str(report.longrepr)]
    if skipped:
        ran = sum(
            "cuda" in report.keywords for key in ("passed", "failed") for report in terminalreporter.stats.get(key, [])
        )
        terminalreporter.write_line(f"cuda: {ran} run, {len(skipped)} skipped ({no_cuda()})")


@functools.cache
def no_cuda() -> str:
    """Why no test can run on a CUDA device here; empty where they can."""
    try:
        from deepinfer_cuda.probe import probe
    except ImportError:
        return "deepinfer-cuda is not installed"
    from deepinfer_core.types import HostInfo

    report = probe(HostInfo(sys.platform, platform.machine(), platform.python_version()))
    if not report.usable:
        return "; ".join(report.reasons)
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"
