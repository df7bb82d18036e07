"""The engine with the shipped model on backend cpu: batch, chunks and preemption change no token."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from deepinfer_core.assembly import memory
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")

PROMPTS = ["import os\n" * 4, "def f(x):\n    return x\n" * 2, "class A:\n" * 6]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=14, ignore_eos=True),
    SamplingParams(temperature=0.8, top_p=0.9, max_tokens=14, seed=7, ignore_eos=True),
    SamplingParams(temperature=1, top_k=20, min_p=0.01, max_tokens=14, seed=8, ignore_eos=True),
]
BLOCK_BYTES, SLOT_BYTES = 1296, 23_136


def tokens(**settings: Any) -> tuple[list[tuple[int, ...]], int]:
    """The tokens, and how often a request was preempted."""
    with LLM(backend="cpu", block_size=16, max_model_len=128, **settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        core = llm.built.engine.core
        core.audit()
        for output in outputs:
            if output.error is not None:
                raise output.error
        return [output.token_ids for output in outputs], core.stats().preemptions


@pytest.fixture(scope="module")
def solo() -> list[tuple[int, ...]]:
    """One at a time and each step committed before the next; everything below runs two steps deep."""
    return tokens(max_num_seqs=1, overlap=False)[0]


def test_batch_equals_solo(solo: list[tuple[int, ...]]) -> None:
    assert tokens(max_num_seqs=3)[0] == solo


def test_small_chunks_equal_solo(solo: list[tuple[int, ...]]) -> None:
    assert tokens(max_num_seqs=3, max_chunk=5)[0] == solo


def test_preemption_equals_solo(solo: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SLOT_SHARE", 0.99)
    with pytest.warns(UserWarning, match="W_CAPACITY: the caches hold"):
        got, preemptions = tokens(max_num_seqs=3, kv_memory=8 * BLOCK_BYTES + 4 * SLOT_BYTES)
    assert preemptions > 0
    assert got == solo


@pytest.mark.slow
def test_target_between_tokens_equals_solo(
    solo: list[tuple[int, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for origin in ("measured in", "read from"):
        assert tokens(max_num_seqs=3, target_itl_ms=1)[0] == solo
        assert f"step times {origin}" in capsys.readouterr().err
