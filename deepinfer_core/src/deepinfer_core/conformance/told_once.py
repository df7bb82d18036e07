"""What keeps every test from running is a failure of the first one; those behind it are skipped, and name it.

pytest raises the exception of a fixture of the whole session again in every test that needs it. A module that cannot be
imported, or a hook that makes nothing, would otherwise be a hundred errors.
"""

from __future__ import annotations

import pytest

from deepinfer_core.conformance.selection import kit_id


class ToldOnce:
    """Exceptions that setups of tests met, with the test that met each first."""

    def __init__(self) -> None:
        self._first: list[tuple[BaseException, str]] = []

    def settle(self, item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
        """Turn ``report`` into that of a skipped test, where its setup met what another test has told."""
        error = None if call.excinfo is None else call.excinfo.value
        if call.when != "setup" or not report.failed or error is None:
            return
        for told, test in self._first:
            if told is error:
                path, line, _ = item.location
                report.outcome = "skipped"
                report.longrepr = (path, line or 0, f"Skipped: what it needs cannot be made: see {test}")
                return
        self._first.append((error, kit_id(item)))
