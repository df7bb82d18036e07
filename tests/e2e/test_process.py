"""The command as an operator runs it: its own process, its memory, its imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

MEBIBYTE = 1024 * 1024

# VmHWM belongs to this program alone; ru_maxrss would keep the peak of the test process that started it.
MEASURE = """
import json, re, sys
from deepinfer_core.cli import main
status = main(sys.argv[1:])
with open("/proc/self/status") as status_file:
    peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status_file.read())[1]) * 1024
print(json.dumps({"status": status, "peak": peak, "modules": sorted(sys.modules)}), file=sys.stderr)
"""


def measured(*arguments: str) -> tuple[str, str, dict[str, object]]:
    """Standard output, standard error, and what the process says of itself."""
    done = subprocess.run(
        [sys.executable, *["-O"] * sys.flags.optimize, "-c", MEASURE, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    *lines, last = done.stderr.splitlines()
    return done.stdout, "\n".join(lines), json.loads(last)


def test_generate_shipped_checkpoint_stays_under_one_gibibyte() -> None:
    out, err, facts = measured("generate", "--max-tokens", "24", "--seed", "5", "import os", "def main(", "class A:")
    assert (facts["status"], err) == (0, "backend: cpu (auto: no accelerator present)")
    assert out.strip()
    assert facts["peak"] < 1024 * MEBIBYTE


def test_help_and_plugins_import_no_torch_and_no_plugin() -> None:
    for arguments in (["--help"], ["plugins"], ["--version"]):
        _, _, facts = measured(*arguments)
        assert facts["status"] == 0
        ours = {"deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers", "deepinfer_verify"}
        heavy = {"torch", "safetensors", "tokenizers", *ours}
        assert heavy.isdisjoint(facts["modules"])  # type: ignore[call-overload]


def test_generate_same_seed_gives_the_same_text_in_another_process() -> None:
    arguments = ("generate", "--max-tokens", "16", "--seed", "11", "import os")
    assert measured(*arguments)[0] == measured(*arguments)[0]


def test_working_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    """A library of torch ends the process there."""
    command = [sys.executable, *["-O"] * sys.flags.optimize, "-m", "deepinfer_core.cli", "generate", "hi"]
    script = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *command], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("deepinfer: E_CONFIG: the working folder is gone\n")
