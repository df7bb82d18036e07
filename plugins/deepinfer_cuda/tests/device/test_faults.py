"""Real faults of a device: no memory left, a NaN, and a context that is lost (in a process of its own).

In mode ``exact``, whose ops are those of ``cpu``: what is tested is the way of a fault, and nothing has to be compiled.
"""

import subprocess
import sys

import pytest
import torch

from deepinfer_core.errors import CapacityError
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_cuda.faults import guarded, is_alive

pytestmark = pytest.mark.cuda

PROMPTS = ["import os", "def main(", "class Node:"]
PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
HUGE = 1 << 44


@pytest.fixture(scope="module")
def llm():
    with LLM(backend="cuda", max_num_seqs=2, graphs=False, numeric_mode="exact") as made:
        yield made


def fail_once(monkeypatch, llm, fault, layer=5, call=4):
    """Layer ``layer`` of the model runs ``fault`` at its ``call``-th call."""
    model = llm.built.engine._parts.model
    real, calls = model._blocks[layer], []

    def block(stream, mix, step):
        calls.append(1)
        if len(calls) == call:
            return fault(stream, mix)
        return real(stream, mix, step)

    monkeypatch.setattr(model, "_blocks", [*model._blocks[:layer], block, *model._blocks[layer + 1 :]])


def test_no_memory_is_told_and_the_device_goes_on(cuda):
    empty = guarded("moe.experts", lambda: torch.empty(HUGE, dtype=torch.uint8, device=cuda))
    with pytest.raises(CapacityError) as caught:
        empty()
    assert caught.value.details["op"] == "moe.experts"
    assert caught.value.reason.startswith("CUDA out of memory")
    assert is_alive()


def test_no_memory_in_a_step_ends_its_requests_alone_and_leaks_nothing(monkeypatch, llm, cuda):
    want = [output.token_ids for output in llm.generate(PROMPTS, PARAMS)]
    op = guarded("moe.experts", lambda *_: torch.empty(HUGE, dtype=torch.uint8, device=cuda))
    used, kept = [], []
    for _ in range(3):  # plain ops keep small constants of sizes that they meet first: one round to warm up
        with monkeypatch.context() as broken:
            fail_once(broken, llm, op)
            outputs = llm.generate(PROMPTS, PARAMS)
        kept.append(outputs)  # errors that somebody keeps hold no memory of the step
        failed = [output for output in outputs if output.error is not None]
        assert 1 <= len(failed) < len(PROMPTS)
        for output in failed:
            assert output.error.details["code"] == "E_CAPACITY"
            assert (output.error.details["op"], output.error.details["layer"]) == ("moe.experts", 5)
        for output in outputs:
            if output.error is None:
                assert output.token_ids == want[output.index]
        assert [output.token_ids for output in llm.generate(PROMPTS, PARAMS)] == want
        torch.cuda.synchronize()
        used.append(torch.cuda.memory_allocated(cuda))
    assert used[2] == used[1], used


NAN = """
import os
os.environ["DEEPINFER_CUDA_CHECK_NAN"] = "1"
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
with LLM(backend="cuda", max_num_seqs=2, numeric_mode="exact") as llm:
    blocks = llm.built.engine._parts.model._blocks
    real = blocks[3]
    def block(stream, mix, step):
        stream = stream.clone()
        stream[-1] = float("nan")
        return real(stream, mix, step)
    blocks[3] = block
    [output] = llm.generate(["import os"], SamplingParams(temperature=0, max_tokens=4))
    error = output.error
    print(error.details["code"], error.details["layer"], error.details["requests"] == [output.request_id])
    print(error.details["op"])
"""
LOST = """
import torch
from deepinfer_core.errors import EngineError
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
with LLM(backend="cuda", max_num_seqs=2, graphs=False, numeric_mode="exact") as llm:
    blocks = llm.built.engine._parts.model._blocks
    real, calls = blocks[3], []
    def block(stream, mix, step):
        calls.append(1)
        if len(calls) == 2:
            # A kernel that stops on an index out of range: the context is gone, as after a write out of bounds.
            stream[torch.full((1,), 1 << 20, device=stream.device)]
        return real(stream, mix, step)
    blocks[3] = block
    outputs = llm.generate(["import os", "def main("], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    print([output.error.details["code"] for output in outputs])
    try:
        llm.generate(["import os"])
    except EngineError as exc:
        print(exc.what)
print("closed")
"""


def child(text):
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()


def test_a_nan_names_op_layer_and_request():
    told, op = child(NAN)
    assert told == "E_NAN 3 True"
    assert "." in op


def test_a_lost_device_ends_the_engine_and_the_process_can_go_on():
    assert child(LOST) == ["['E_DEVICE', 'E_DEVICE']", "the engine stopped after a fault", "closed"]
