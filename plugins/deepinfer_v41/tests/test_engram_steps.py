"""Engram in a running sequence: look-back over step boundaries, and the gate (``spec/model.md`` 2.3, 7.17, 7.18)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from dense_reference import DenseReference
from torch import Tensor
from v41_models import cpu_backend
from v41_tiny import edited, prompt, tiny_driver, tiny_path, tiny_recorded

IDS = prompt(24, seed=21)


@functools.cache
def recorded() -> Any:
    return tiny_recorded(tiny_path())


def rows(**how: Any) -> Tensor:
    driver, recorder = recorded()
    recorder.clear()
    driver.all_logits(IDS, **how)
    return recorder.hashes()


@pytest.mark.parametrize(
    "how", [{}, {"chunk": 1}, {"chunk": 2}, {"chunk": 3}, {"split": 1}, {"split": 8, "q": 4}], ids=str
)
def test_table_rows_do_not_depend_on_the_steps(how):
    assert torch.equal(rows(**how), DenseReference(tiny_path()).hash_rows(IDS))


def test_table_rows_after_a_rejected_draft_see_the_true_predecessors():
    driver, recorder = recorded()
    s = driver.open([*IDS[:10], 400, 401, 402, *IDS[13:]])
    driver.prefill(s, 10, 24)
    driver.run([(s, 3)], prompt=False)
    s.done, s.tokens = 10, list(IDS)
    recorder.clear()
    driver.decode(s, 24)
    driver.close(s)
    assert torch.equal(recorder.hashes(), DenseReference(tiny_path()).hash_rows(IDS)[10:])


def test_image_placeholder_ends_the_look_back():
    """Should the model itself write one: it and what stands before it count as the pad."""
    driver, recorder = recorded()
    image, pad = driver.model.config.image_token_id, driver.model.config.engram_pad_token_id
    ids = [*IDS[:12], image, *IDS[13:]]
    recorder.clear()
    driver.all_logits(ids)
    want = DenseReference(tiny_path()).hash_rows([*[pad] * 13, *IDS[13:]])
    assert torch.equal(recorder.hashes()[12:], want[12:])


def test_gate_without_value_leaves_the_streams_alone():
    path = edited(tiny_path(), _without_value)
    rows_in: list[Tensor] = []
    rows_out: list[Tensor] = []

    def note(f: Any) -> Any:
        def op(stream: Tensor, *args: Any, **kw: Any) -> Tensor:
            rows_in.append(stream)
            rows_out.append(f(stream, *args, **kw))
            return rows_out[-1]

        return op

    driver, _ = tiny_recorded(path, extra={"engram.gate": note})
    driver.all_logits(IDS)
    assert len(rows_in) == 2
    for before, after in zip(rows_in, rows_out, strict=True):
        assert torch.equal(before, after)


def _without_value(t: dict[str, Tensor]) -> dict[str, Tensor]:
    changed = {}
    for name in t:
        if name.endswith("engram.wkv.weight"):
            weight = t[name].view(torch.uint8).clone()
            weight[-128:] = 0  # the last D outputs are the value
            changed[name] = weight.view(torch.float8_e4m3fn)
    return changed


@pytest.mark.parametrize(
    ("dot", "gate"), [(0.0, 0.5002500), (1e-8, 0.5002500), (0.04, 0.5498340), (-0.25, 0.3775407), (4.0, 0.8807971)]
)
def test_gate_values_of_the_specification(dot, gate):
    """Width 16, unit vectors: the normalised dot product is ``sum(x w k) / (|x| |k|) * sqrt(16)``."""
    ops = cpu_backend().engram
    stream = torch.zeros(1, 1, 16)
    stream[0, 0, 0] = 1.0
    kv = torch.zeros(1, 32)
    kv[0, 0] = 1.0
    kv[0, 16:] = 1.0
    params = ops.prepare_gate(torch.full((1, 16), dot / 4), torch.ones(1, 16))
    added = ops.gate(stream, kv, params)[0, 0, 1]
    torch.testing.assert_close(added, torch.tensor(gate), atol=2e-7, rtol=0)


def test_one_token_prompt_after_a_long_one_is_as_in_a_fresh_engine():
    driver = tiny_driver(tiny_path())
    fresh = driver.all_logits([5])
    driver.all_logits(prompt(100, seed=3))
    assert torch.equal(driver.all_logits([5]), fresh)
