"""The report: JSON in the file that an environment variable names, written when the backend closes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from deepinfer_core.errors import InvalidInputFile, OutputError

from deepinfer_counting_backend.counts import OpCount

VARIABLE = "COUNTING_BACKEND_REPORT"
"""Not DEEPINFER_...: those are settings of the core, and it warns of one that it does not know."""


def asked_file() -> Path | None:
    """Where the report goes; None: nobody asked for one."""
    text = os.environ.get(VARIABLE)
    return Path(text) if text else None


def write_report(file: Path, backend: str, counts: Mapping[str, OpCount]) -> None:
    """Replace ``file``. Raises OutputError."""
    data = {"backend": backend, "ops": {op: asdict(count) for op, count in sorted(counts.items())}}
    try:
        file.write_text(json.dumps(data, indent=1) + "\n", "utf-8")
    except OSError as err:
        raise OutputError(
            f"cannot write {file}", reason=err.strerror or str(err), remedy=f"change {VARIABLE}, or unset it"
        ) from err


def read_report(file: Path) -> dict[str, OpCount]:
    """Op -> its count. Raises InvalidInputFile."""
    try:
        ops = json.loads(file.read_text("utf-8"))["ops"]
        return {op: OpCount(str(c["provider"]), int(c["calls"]), float(c["seconds"])) for op, c in ops.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as err:
        raise InvalidInputFile(
            f"{file} is no report of backend counting",
            reason=f"{type(err).__name__}: {err}",
            remedy=f"run: {VARIABLE}={file} deepinfer generate --backend counting ...",
        ) from err


def as_table(counts: Mapping[str, OpCount]) -> str:
    """The ops that were called, those that took longest first."""
    called = sorted((c for c in counts.items() if c[1].calls), key=lambda item: (-item[1].seconds, item[0]))
    rows = [("OP", "CALLS", "MILLISECONDS", "PROVIDER")]
    rows += [(op, str(c.calls), f"{1000 * c.seconds:.1f}", c.provider) for op, c in called]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = [f"{a.ljust(widths[0])}  {b.rjust(widths[1])}  {c.rjust(widths[2])}  {d}" for a, b, c, d in rows]
    return "\n".join([*lines, f"{len(called)} of {len(counts)} ops were called"])
