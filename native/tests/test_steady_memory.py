"""Steps allocate nothing that stays: counted in C, traced in Python, and seen from outside as resident memory."""

import ctypes
import gc
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from c_build import NATIVE, WRAP, link, run
from native_driver import VOCAB, small_config

from deepinfer_contracts import SamplerOutput, StepKind
from deepinfer_native import Core

SEQS = 4
PR_SET_THP_DISABLE = 41


@pytest.fixture(scope="module")
def program(core_objects, tmp_path_factory):
    """``steady_program``, its allocator counted."""
    cc, objects = core_objects
    source = NATIVE / "tests" / "c" / "steady_program.c"
    return link(
        tmp_path_factory.mktemp("steady") / "steady_program", cc, [source], objects, ["-D_DEFAULT_SOURCE", *WRAP]
    )


@pytest.mark.compiled
def test_c_steps_allocate_nothing_and_churn_keeps_its_memory(program):
    said = run([program, "100000"]).splitlines()
    assert said[-1] == "ok"
    assert sum(line.startswith("steady: ") for line in said) == 11


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_c_churn_of_a_million_steps_keeps_its_memory(program):
    assert run([program, "1000000"]).splitlines()[-1] == "ok"


class Engine:
    """A pipelined engine whose device makes token 3 in every row; one right draft of each request."""

    def __init__(self, num_draft, **changes):
        self.k = num_draft
        changes = {"num_draft": num_draft, "depth": 2, "validation": "boundary", **changes}
        self.core = Core(small_config(**changes))
        self.outputs = {}
        self.open = None

    def output(self, n, is_decode):
        """Made once for each shape, as a device's staging buffers are."""
        if (n, is_decode) in self.outputs:
            return self.outputs[n, is_decode]
        out = SamplerOutput(
            sampled_ids=np.full(n, 3, np.int32),
            sampled_logprob=np.zeros(n, np.float32),
            row_status=np.zeros(n, np.int8),
        )
        if self.k:
            out.draft_ids = np.full((n, self.k), 3, np.int32)
        if self.k and is_decode:
            rows = np.full((n, self.k + 1), -1, np.int32)
            rows[:, 0] = 3
            out.verified_ids, out.accepted = rows.reshape(-1), np.ones(n, np.int32)
        self.outputs[n, is_decode] = out
        return out

    def retire(self):
        if self.open is not None:
            step, output = self.open
            self.open = None
            events = self.core.commit(step, output)
            events.token_id.sum()  # read and dropped, as an engine does
            self.core.step_done(step)

    def step(self):
        """Rows of the step."""
        o = self.core.schedule_local()
        n, kind, step = o.num_reqs, o.kind, o.step_id
        if n:
            self.core.pack(step)
        self.retire()
        if not n:
            self.core.poll_events()
            return 0
        self.core.pack_sampler(step)
        self.open = (step, self.output(n, kind == StepKind.DECODE))
        if kind == StepKind.PREFILL:
            self.retire()
        return n


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("num_draft", [0, 3])
def test_python_steady_steps_keep_nothing(num_draft):
    engine = Engine(num_draft, num_blocks=8200, max_model_len=10_000, block_size=8)
    for n in range(SEQS):
        engine.core.submit([5] * (6 + n), max_tokens=9900, eos_ids=[1])
    # CPython keeps up to 2,000 freed tuples of each length for later; a full collection empties these stores, and the
    # steps of the warm-up fill them.
    gc.collect()
    gc.disable()
    for _ in range(2500):
        engine.step()
    tracemalloc.start()
    try:
        for _ in range(200):
            engine.step()
        # The interpreter's own stores may still settle in one stretch; what a step keeps shows in each of them.
        kept = [growth(engine) for _ in range(3)]
    finally:
        tracemalloc.stop()
        gc.enable()
    # The figures themselves are some small objects. One object a step would be 500 blocks.
    assert min(traced for traced, _ in kept) <= 512, kept
    assert min(blocks for _, blocks in kept) <= 16, kept


def growth(engine):
    """(bytes, blocks) of Python's allocator that stay after 500 steps."""
    blocks, traced = sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0]
    for _ in range(500):
        rows = engine.step()
        if rows != SEQS:
            raise AssertionError(f"a step of {rows} rows")
    return tracemalloc.get_traced_memory()[0] - traced, sys.getallocatedblocks() - blocks


def churn(steps):
    """Resident bytes gained between a tenth of the steps and the end; requests come, end and are aborted."""
    rng = np.random.default_rng(4)
    engine = Engine(2, num_blocks=60)
    recent, start = [], 0
    for i in range(steps):
        while engine.core.unfinished < 8:
            prompt = rng.integers(3, VOCAB, rng.integers(1, 40), dtype=np.int32)
            recent.append(engine.core.submit(prompt, max_tokens=int(rng.integers(1, 40)), eos_ids=[1]))
        del recent[:-8]
        if i % 20 == 19:
            engine.core.abort([recent[int(rng.integers(len(recent)))]])
        engine.step()
        if i == steps // 10:
            gc.collect()
            start = resident_bytes()
    gc.collect()
    engine.core.check()
    return resident_bytes() - start


@pytest.fixture
def usual_pages():
    """Pages of the usual size: the system joins pages that are asked for as large ones whenever it finds the time, and
    what lies between those that were written becomes resident then, without a step having asked for it."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc to read the resident memory")
    prctl = ctypes.CDLL(None).prctl
    if prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0):
        pytest.skip("this system does not let a process do without large pages")
    yield
    prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def test_python_churn_keeps_its_resident_memory(usual_pages):
    gained = churn(5_000)
    assert gained <= 512 * 1024, f"{gained} bytes gained"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_python_churn_of_a_million_steps_keeps_its_resident_memory(usual_pages):
    gained = churn(1_000_000)
    assert gained <= 512 * 1024, f"{gained} bytes gained"
