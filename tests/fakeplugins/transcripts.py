"""What a person at the terminal types and reads, one ``transcript.txt`` beside each fake distribution.

::

    # a comment, up to the next command
    $ a command of the shell, with the venv activated, in the folder of the case
    a line of standard output
    2> a line of standard error
    [3]                                       the exit status, unless it is 0
    imports: fake_one, torch                  packages of interest that were imported, unless there is none

Paths are shortened: ``SITE`` is site-packages, ``CASE`` the folder of the case, ``TMP`` where the venv lies.
``deepinfer plugins | grep ...`` is run once for all transcripts, and shown without its padding.

``python tests/fakeplugins/transcripts.py`` runs all of them and writes down what the commands say now. Read the
difference before you keep it: a transcript is right because somebody judged it, not because it was recorded.
"""

from __future__ import annotations

import re
import shlex
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from attrs import define, field
from command_server import CommandServer, plain_command
from crowd import make_crowd
from fake_venv import FakeVenv, cases

LISTING = "deepinfer plugins | grep "


@define
class Step:
    """One command and what belongs to it; ``comment`` stands above it."""

    command: str
    comment: list[str] = field(factory=list)
    lines: list[str] = field(factory=list)

    def text(self) -> str:
        return "\n".join([*self.comment, f"$ {self.command}", *self.lines])


def parse(text: str) -> list[Step]:
    steps: list[Step] = []
    comment: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            steps.append(Step(line[2:], comment))
            comment = []
        elif line.startswith("# "):
            comment.append(line)
        elif steps and not comment:
            steps[-1].lines.append(line)
    for step in steps:
        while step.lines and not step.lines[-1]:
            step.lines.pop()
    return steps


def render(steps: Iterable[Step]) -> str:
    return "\n\n".join(step.text() for step in steps) + "\n"


class Runner:
    """Runs commands in a venv. The listing is made once.

    :param server: Runs what needs no shell, in forks; None: every command is a process of its own.
    """

    def __init__(self, venv: FakeVenv, server: CommandServer | None = None) -> None:
        self.venv = venv
        self.server = server
        self._listing: list[str] | None = None

    def lines(self, command: str, case: Path) -> list[str]:
        """What ``command`` leaves behind, in the form of a transcript."""
        if command.startswith(LISTING):
            pattern = shlex.split(command.removeprefix(LISTING))[0]
            return [re.sub("  +", "  ", line) for line in self.listing() if pattern in line]
        with tempfile.TemporaryDirectory() as scratch:
            imports = Path(scratch) / "imports"
            imports.touch()
            out, err, status = self.run(command, case, FAKEPLUGINS_IMPORTS=str(imports))
            imported = sorted(set(imports.read_text().split()))
        lines = self.plain(out, case)
        lines += [f"2> {line}".rstrip() for line in self.plain(err, case)]
        lines += [f"[{status}]"] if status else []
        return lines + ([f"imports: {', '.join(imported)}"] if imported else [])

    def run(self, command: str, cwd: Path, **environ: str) -> tuple[str, str, int]:
        """Standard output, standard error and exit status."""
        plain = plain_command(command) if self.server is not None else None
        if plain is not None and self.server is not None:
            return self.server.run(plain[0], cwd, **environ, **plain[1])
        if sys.flags.optimize:
            environ["PYTHONOPTIMIZE"] = str(sys.flags.optimize)
        done = self.venv.shell(command, cwd, **environ)
        return done.stdout, done.stderr, done.returncode

    def listing(self) -> list[str]:
        if self._listing is None:
            done = self.venv.run("plugins")
            if done.returncode or done.stderr:
                raise AssertionError(done.stderr)
            self._listing = self.plain(done.stdout, self.venv.folder)
        return self._listing

    def plain(self, text: str, case: Path) -> list[str]:
        text = text.replace(str(self.venv.site), "SITE").replace(str(case), "CASE")
        text = text.replace(str(self.venv.folder.parent), "TMP")
        return [line.rstrip() for line in text.splitlines()]


def main(names: list[str]) -> None:
    """Write the transcripts anew: those of the cases named, or all."""
    root = Path(__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        venv = make_crowd(Path(folder))
        server = CommandServer(venv)
        runner = Runner(venv, server)
        for case in cases(root):
            path = case / "transcript.txt"
            if not path.exists() or (names and case.name not in names):
                continue
            steps = parse(path.read_text())
            for step in steps:
                step.lines = runner.lines(step.command, case)
            path.write_text(render(steps))
        server.close()


if __name__ == "__main__":
    main(sys.argv[1:])
