"""The mutants of ``mutants.py`` still apply, and (nightly) every one of them is noticed."""

import shutil
import subprocess
import sys

import mutants
import pytest


def test_every_mutant_still_applies():
    assert mutants.stale() == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_mutant_is_noticed():
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler is installed: apt install gcc")
    done = subprocess.run([sys.executable, mutants.__file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
