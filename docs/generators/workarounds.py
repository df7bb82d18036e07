"""The ledger of workarounds: every ``# WORKAROUND(WHAT): why. Delete when CONDITION.`` of the sources."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from generators.markdown import NOTICE, cell

ROOT = Path(__file__).parents[2]
FOLDERS = ("contracts", "native", "deepinfer_core", "plugins")
MARK = re.compile(r"(?:#|//|/\*|\*) WORKAROUND\(([^)]*)\): *")
HEAD = """\
Code that is there because something else is wrong, and that goes when that is put right. Each stands in the sources
as a comment that begins with `WORKAROUND`; this table is made of those comments.
"""


def workarounds_page() -> str:
    lines = ["# Workarounds", "", NOTICE, HEAD, "| because of | where | what and why | deleted when |"]
    lines.append("| --- | --- | --- | --- |")
    for what, path, text in found():
        why, marked, condition = text.partition("Delete when ")
        if not marked:
            raise SystemExit(f"{path}: WORKAROUND({what}) does not say `Delete when CONDITION.`")
        lines.append(f"| {what} | `{path}` | {cell(why)} | {cell(condition.rstrip('.'))} |")
    return "\n".join(lines) + "\n"


def found() -> Iterator[tuple[str, str, str]]:
    """What each workaround is for, its file, and its text."""
    paths = (path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.*") if "/src/" in path.as_posix())
    for path in sorted(path for path in paths if path.suffix in (".py", ".c", ".h")):
        lines = path.read_text("utf-8").splitlines()
        for number, line in enumerate(lines):
            start = MARK.search(line)
            if start is not None:
                rest = [line[start.end() :]]
                for below in lines[number + 1 :]:
                    comment = re.match(r"\s*(?:#|//|\*(?!/)) ?(.*)", below)
                    if comment is None:
                        break
                    rest.append(comment[1])
                yield start[1], path.relative_to(ROOT).as_posix(), " ".join(rest)
