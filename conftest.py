"""Import the installed ``deepinfer_core`` first: in importlib mode the folder of that name would shadow it.

Tests marked ``cuda`` or ``ascend`` are skipped, with the reason of the probe, where that backend cannot be used; the
summary says how many.
"""

from __future__ import annotations

import functools
import importlib
import platform
import signal
import sys

import pytest

import deepinfer_core  # noqa: F401

# A job that a shell starts in the background inherits an ignored SIGINT, and so would every process of the tests: those
# about Ctrl-C need it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


DEVICES = {"cuda": "deepinfer_cuda", "ascend": "deepinfer_ascend"}
"""Backend, and marker of the tests that need its device -> package."""


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Name the ini option ``timeout`` where pytest-timeout does not: ``--strict-config`` would refuse it, and who runs
    the conformance kit in a clone need not have that plugin."""
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "Of pytest-timeout, which is not here: tests run without a limit.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for name in DEVICES:
        marked = [item for item in items if item.get_closest_marker(name)]
        absent = unusable(name) if marked else ""
        for item in marked if absent else ():
            item.add_marker(pytest.mark.skip(reason=f"no device of backend {name}: {absent}"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    told = terminalreporter.stats
    for name in DEVICES:
        skipped = [r for r in told.get("skipped", []) if f"no device of backend {name}" in str(r.longrepr)]
        if skipped:
            ran = sum(name in report.keywords for key in ("passed", "failed") for report in told.get(key, []))
            terminalreporter.write_line(f"{name}: {ran} run, {len(skipped)} skipped ({unusable(name)})")


@functools.cache
def unusable(name: str) -> str:
    """Why no test can run on a device of this backend here; empty where they can."""
    try:
        probing = importlib.import_module(f"{DEVICES[name]}.probe")
    except ImportError:
        return f"deepinfer-{name} is not installed"
    from deepinfer_core.types import HostInfo

    report = probing.probe(HostInfo(sys.platform, platform.machine(), platform.python_version()))
    if not report.usable:
        return "; ".join(report.reasons)
    if name == "ascend":
        return ""
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} finds no CUDA device"
