"""Runs what the pages show, so that no page shows a command that fails.

``python docs/run_pages.py [PAGE ...]`` runs each ```bash block, and each ```python block as a script, of the pages (of
README.md and all of ``docs/`` that people read in order, if none is given), in a folder of its own for each page.
``.venv`` stands for the environment of the Python that runs this. A block with ``<!-- not run: REASON -->`` above it is
left out; ```text is output.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

FOLDER = Path(__file__).parent
BLOCK = re.compile(r"(?P<skip><!-- not run: [^\n]* -->\n\n?)?```(?P<kind>bash|python)\n(?P<body>.*?)^```$", re.M | re.S)
TIMEOUT_S = 300


def blocks(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, kind and text of each block that is run."""
    for match in BLOCK.finditer(text):
        if not match["skip"]:
            yield text.count("\n", 0, match.start("body")) + 1, match["kind"], match["body"]


def run_page(page: Path) -> list[str]:
    """Run a page's blocks in order. Returns one text for each that failed."""
    environment = Path(sys.executable).parent.parent
    failures = []
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, ".venv").symlink_to(environment)  # whole: Python knows its packages by what lies beside bin
        for line, kind, body in blocks(page.read_text("utf-8")):
            command = ["bash", "-euo", "pipefail", "-c", body] if kind == "bash" else [sys.executable, "-c", body]
            try:
                done = subprocess.run(
                    command, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
                )
            except subprocess.TimeoutExpired:
                failures.append(f"{page}:{line}: still running after {TIMEOUT_S} s")
                continue
            if done.returncode:
                failures.append(f"{page}:{line}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return failures


def main(arguments: list[str]) -> int:
    folders = ("tutorials", "how-to", "explanation")
    everything = [FOLDER.parent / "README.md", *(p for f in folders for p in sorted((FOLDER / f).glob("*.md")))]
    pages = [Path(name) for name in arguments] or everything
    failures = []
    for page in pages:
        failed = run_page(page)
        sys.stdout.write(f"{page}: {'failed' if failed else 'ok'}\n")
        failures += failed
    for failure in failures:
        sys.stdout.write(f"{failure}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
