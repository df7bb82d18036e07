"""The plain C loop of ``c_loop.c``: how far below everything else the bare arithmetic lies."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("c_loop.c")


def compiler() -> list[str] | None:
    """``CC`` or the system's C compiler."""
    wanted = shlex.split(os.environ.get("CC", "cc"))
    return wanted if wanted and shutil.which(wanted[0]) else None


def measure(cases: list[tuple[int, int]], steps: int = 400, runs: int = 5) -> list[dict[str, Any]]:
    """Rows for (sequences, tokens a step); none without a C compiler."""
    cc = compiler()
    if cc is None:
        return []
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "c_loop")
        subprocess.run([*cc, "-std=c11", "-O2", "-o", program, str(SOURCE)], check=True)
        rows = []
        for seqs, tokens in cases:
            command = [program, str(seqs), str(tokens), str(steps), str(runs)]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            # A run is one mean: the best one was disturbed least.
            us = min(float(text) for text in said.split()) / 1e3
            rows.append({"seqs": seqs, "tokens": tokens, "total_us": round(us, 4)})
    return rows
