"""``deepinfer generate`` as a process whose compiler never comes back."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from engine_toys import save_tokenizer


def hanging(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """The command over toy parts with a compiler that never comes back."""
    save_tokenizer(tmp_path)
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("toy_command.py")), "generate", "a", "--regex", "a", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TOY_MODEL": str(tmp_path), "TOY_GRAMMAR_HANGS": "1"},
    )


def test_interrupt_ends_a_process_whose_compiler_hangs(tmp_path: Path) -> None:
    with hanging(tmp_path) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(2)]
        assert lines == ["backend: toy (test)\n", "compiling\n"]
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert rest.endswith("deepinfer: interrupted\n")


def test_process_whose_compiler_hangs_ends_at_the_time_limit(tmp_path: Path) -> None:
    with hanging(tmp_path, "--so-timeout-s", "1", "--json") as process:
        out, err = process.communicate(timeout=60)
    record = json.loads(out)
    assert (process.returncode, record["finish_detail"]) == (1, "so_compile_timeout")
    assert "did not compile within 1 s" in err
    assert "deepinfer: grammars: 0 compiled, 0 cached, 0 failed, 1 timed out, 1 workers stuck; 0 masks" in err
