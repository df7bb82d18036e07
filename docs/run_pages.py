"""Runs what the pages show, so that no page shows a command that fails or prints something else.

``python docs/run_pages.py [--write] [PAGE ...]`` runs the blocks of the pages (of README.md and all that people read in
order, if none is given), in a folder of its own for each page. ``.venv`` stands there for the environment of the Python
that runs this, or, where the page says ``<!-- run in an environment of its own -->``, for a throw-away one on top of
it, into which the page may install: what its ``pip install`` builds with and depends on (hatchling) is there already.

==============================  ========================================================================================
````` ```bash `````             run as one script
````` ```python `````           run as a program
````` ```console `````          each ``$ command`` runs; the lines below it are what it prints, errors included
````` ```text `````             not looked at, unless ``<!-- output -->`` or ``<!-- error output -->`` stands above it:
                                then it is what the block before it printed
``<!-- not run: REASON -->``    above a block leaves it out
``<!-- exit status: N -->``     above a block says how its commands end; 0 without it
==============================  ========================================================================================

In output, ``...`` stands for anything within a line, and on a line of its own for any lines. With ``--write``, output
without ``...`` that differs is written into the page.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
BLOCK = re.compile(
    r"(?P<notes>(?:<!-- (?:not run: [^\n]*|exit status: \d+|output|error output) -->\n\n?)*)"
    r"```(?P<kind>bash|python|console|text)\n(?P<body>.*?)^```$",
    re.M | re.S,
)
OWN_ENVIRONMENT = "<!-- run in an environment of its own -->"
TIMEOUT_S = 300
MOST_AT_ONCE = 4
PIP = """#!/bin/sh
export PIP_DISABLE_PIP_VERSION_CHECK=1
if [ "$1" = install ]; then
  shift
  set -- install --no-index --no-deps --no-build-isolation "$@"
fi
exec "{python}" -m pip "$@"
"""


@dataclass(frozen=True)
class Block:
    """A block of a page, with what stands in comments above it."""

    line: int
    kind: str
    body: str
    span: tuple[int, int]
    """Where the body is in the page."""
    skipped: bool
    status: int
    output: str
    """``output`` or ``error output``, for text that is compared."""


@dataclass
class Printed:
    """What a command left behind."""

    status: int
    output: str
    errors: str


def blocks(text: str) -> Iterator[Block]:
    """Every block that is run or compared, in order."""
    for match in BLOCK.finditer(text):
        status = re.search(r"exit status: (\d+)", match["notes"])
        output = re.search(r"<!-- ((?:error )?output) -->", match["notes"])
        if match["kind"] == "text" and not output:
            continue
        yield Block(
            line=text.count("\n", 0, match.start("body")) + 1,
            kind=match["kind"],
            body=match["body"],
            span=match.span("body"),
            skipped="<!-- not run: " in match["notes"],
            status=int(status[1]) if status else 0,
            output=output[1] if output else "",
        )


def same_output(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what the page shows; spaces at the ends of lines do not count."""
    pattern = ""
    for line in shown.rstrip("\n").splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"\n"
    lines = [line.rstrip() for line in printed.rstrip("\n").splitlines()]
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in lines)) is not None


class Page:
    """One page while it runs, in its folder."""

    def __init__(self, path: Path, folder: Path) -> None:
        self.path, self.folder = path, folder
        self.text = path.read_text("utf-8")
        self.python = _own_environment(folder) if OWN_ENVIRONMENT in self.text else _linked_environment(folder)
        self.failures: list[str] = []
        self.corrections: list[tuple[tuple[int, int], str]] = []

    def run(self) -> None:
        """Run and compare every block; what fails is in :attr:`failures`."""
        last: Printed | None = None
        for block in blocks(self.text):
            if block.skipped:
                continue
            if block.kind == "console":
                self._run_console(block)
            elif block.kind == "text":
                if last is None:
                    self._fail(block, "nothing ran before this output")
                else:
                    self._compare(block, block.body, last.output if block.output == "output" else last.errors)
            else:
                program = ["bash", "-euo", "pipefail", "-c"] if block.kind == "bash" else [str(self.python), "-c"]
                last = self._run(block, [*program, block.body])

    def corrected(self) -> str:
        """The page with the output that was printed."""
        text = self.text
        for (start, end), body in sorted(self.corrections, reverse=True):
            text = text[:start] + body + text[end:]
        return text

    def _run_console(self, block: Block) -> None:
        place = block.span[0]
        for part in re.split(r"^(?=\$ )", block.body, flags=re.M):
            if not part.startswith("$ "):
                if part.strip():
                    self._fail(block, "the block does not begin with a command")
            else:
                command, _, shown = part[2:].partition("\n")
                printed = self._run(block, ["bash", "-euo", "pipefail", "-c", f"exec 2>&1; {command}"])
                start = place + len(part) - len(shown)
                if printed is not None:
                    self._compare(block, shown, printed.output, (start, place + len(part)))
            place += len(part)

    def _run(self, block: Block, command: list[str]) -> Printed | None:
        try:
            done = subprocess.run(
                command,
                cwd=self.folder,
                env=os.environ,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            self._fail(block, f"still running after {TIMEOUT_S} s")
            return None
        if done.returncode != block.status:
            expected = f", expected {block.status}" if block.status else ""
            self._fail(block, f"exit status {done.returncode}{expected}\n{done.stdout}{done.stderr}")
        return Printed(done.returncode, done.stdout, done.stderr)

    def _compare(self, block: Block, shown: str, printed: str, span: tuple[int, int] | None = None) -> None:
        if same_output(shown, printed):
            return
        self._fail(block, f"the page shows\n{shown}and what came is\n{printed}")
        if "..." not in shown:
            body = "".join(f"{line.rstrip()}\n" for line in printed.splitlines())
            self.corrections.append((span or block.span, body))

    def _fail(self, block: Block, what: str) -> None:
        self.failures.append(f"{self.path}:{block.line}: {what}")


def _linked_environment(folder: Path) -> Path:
    """``.venv`` as the environment of this Python, whole: Python knows its packages by what lies beside ``bin``."""
    Path(folder, ".venv").symlink_to(Path(sys.executable).parent.parent)
    return Path(sys.executable)


def _own_environment(folder: Path) -> Path:
    """``.venv`` as an environment that sees the packages of this Python, and into which a page may install."""
    made = folder / ".venv"
    venv.create(made, with_pip=True)
    python = made / "bin" / "python"
    purelib = sysconfig.get_path("purelib", vars={"base": str(made), "platbase": str(made)})
    outer = sysconfig.get_path("purelib")
    Path(purelib, "outer.pth").write_text(f"import site; site.addsitedir({outer!r})\n", "utf-8")
    for name in ("deepinfer", "pytest"):
        module = "deepinfer_core.cli" if name == "deepinfer" else name
        command = made / "bin" / name
        command.write_text(f'#!/bin/sh\nexec "{python}" -m {module} "$@"\n', "utf-8")
        command.chmod(0o755)
    pip = made / "bin" / "pip"
    pip.write_text(PIP.format(python=python), "utf-8")
    return python


def ran(path: Path) -> Page:
    """The page, after its blocks ran in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        page = Page(path, Path(folder))
        page.run()
    return page


def main(arguments: list[str]) -> int:
    folders = ("tutorials", "how-to", "explanation")
    everything = [FOLDER.parent / "README.md", FOLDER / "index.md"]
    everything += [page for name in folders for page in sorted((FOLDER / name).glob("*.md"))]
    is_writing = "--write" in arguments
    failures = []
    pages = [Path(name) for name in arguments if name != "--write"] or everything
    with ThreadPoolExecutor(min(os.cpu_count() or 1, MOST_AT_ONCE)) as pool:  # a page waits for its commands
        for page in pool.map(ran, pages):
            sys.stdout.write(f"{page.path}: {'failed' if page.failures else 'ok'}\n")
            sys.stdout.flush()
            failures += page.failures
            if is_writing and page.corrections:
                page.path.write_text(page.corrected(), "utf-8")
    for failure in failures:
        sys.stdout.write(f"{failure}\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
