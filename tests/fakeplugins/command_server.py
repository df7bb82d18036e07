"""Runs ``deepinfer`` commands, each in a fork of one process that has imported the command line and no plugin.

Two hundred commands would spend most of their time importing the same modules. A fork has nothing of another command:
the parent runs none. What starts a process anew, children of a command among them, does so here too.

Requests and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from fake_venv import FakeVenv

_SERVER = """
import json, os, sys
sys.path.pop(0)  # the working directory, which the script of a command does not have there
import deepinfer_core.cli, deepinfer_core.cli.doctor, deepinfer_core.cli.generate, deepinfer_core.cli.plugins_command
import deepinfer_core.assembly.build, deepinfer_core.doctor.diagnose, deepinfer_core.plugins.contract_check
import stevedore.driver

wrong = [name for name in sys.modules if name.startswith(("torch", "fake_", "deepinfer_cpu", "deepinfer_v41"))]
if wrong:
    sys.exit(f"imported before any command: {wrong}")

def run(request):
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    for fd, name in ((0, os.devnull), (1, request["out"]), (2, request["err"])):
        os.dup2(os.open(name, os.O_RDWR), fd)
    sys.argv = ["deepinfer", *request["arguments"]]
    status = deepinfer_core.cli.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            run(json.loads(line))
        finally:
            os._exit(99)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class CommandServer:
    """The process, and its commands one after the other."""

    def __init__(self, venv: FakeVenv) -> None:
        self.venv = venv
        self._process = subprocess.Popen(
            [str(venv.python), *["-O"] * sys.flags.optimize, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=venv.environment(),
            cwd=venv.folder,
        )

    def run(self, arguments: list[str], cwd: Path, **environ: str) -> tuple[str, str, int]:
        """Standard output, standard error and exit status of ``deepinfer ARGUMENTS``."""
        with tempfile.TemporaryDirectory() as scratch:
            out, err = Path(scratch) / "out", Path(scratch) / "err"
            out.touch()
            err.touch()
            request = {
                "arguments": arguments,
                "cwd": str(cwd),
                "environment": self.venv.environment(**environ),
                "out": str(out),
                "err": str(err),
            }
            status = self._ask(request)
            return out.read_text(), err.read_text(), status

    def _ask(self, request: dict[str, object]) -> int:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the server of commands has no pipes")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the server of commands ended with status {self._process.wait()}")
        return int(answer)

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait(timeout=60)
        if self._process.stdout is not None:
            self._process.stdout.close()


def plain_command(command: str) -> tuple[list[str], dict[str, str]] | None:
    """Arguments and variables of ``VARIABLE=value deepinfer ARGUMENTS``; None for a command that needs a shell."""
    if any(mark in command for mark in "|&;<>$"):
        return None
    words = shlex.split(command)
    place = words.index("deepinfer") if "deepinfer" in words else -1
    if place < 0 or not all("=" in word for word in words[:place]):
        return None
    return words[place + 1 :], {word.partition("=")[0]: word.partition("=")[2] for word in words[:place]}
