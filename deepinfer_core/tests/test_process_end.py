"""The end of a process in which a daemon thread generates."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import atexit, threading, time
from functools import partial

launched, began = [], threading.Event()

def look():  # registered first, so it runs last
    before = len(launched)
    time.sleep(0.3)
    print("at the end", len(launched) - before, "more of", bool(before))

atexit.register(look)

from engine_toys import Faulty, ToyModel, prompts_of, toy_llm
from deepinfer_core.parameters.sampling_params import SamplingParams

def note(method, number, go):
    launched.append(number)
    began.set()
    time.sleep(0.01)
    return go()

llm = toy_llm(parts={"model": Faulty(ToyModel(), note, "forward")})
params = SamplingParams(max_tokens=2000, ignore_eos=True)
threading.Thread(target=partial(llm.generate, prompts_of(2, 5), params), daemon=True).start()
began.wait(20)
"""


def test_no_step_begins_once_the_process_ends() -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-c", PROGRAM]
    ended = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.stdout, ended.returncode) == ("at the end 0 more of True\n", 0), ended.stderr
