"""What bounded replay saves, counted: operations of the products that a prefill runs (``spec/engine.md`` 2.8, 3.7)."""

from __future__ import annotations

import functools

import pytest
from torch.utils.flop_counter import FlopCounterMode
from v41_driver import Driver
from v41_flops import cost_model
from v41_models import SHIPPED, make_driver
from v41_tiny import prompt

from deepinfer_contracts import ReplayMode
from deepinfer_native import CostRow
from deepinfer_native.reference_cost import tera_flops

KEEP = 44


@functools.cache
def driver() -> Driver:
    made = make_driver(SHIPPED, "released")
    made.replay_inputs = ReplayMode.COMPACT
    return made


def counted(length: int, mode: ReplayMode, chunk: int) -> int:
    d = driver()
    s = d.open(prompt(length, seed=1, vocab=1500))
    s.replay_mode = mode
    s.keep_from = 0 if mode == ReplayMode.OFF else max(0, length - KEEP)
    with FlopCounterMode(display=False) as counter:
        d.prefill(s, length, chunk)
    d.close(s)
    return int(counter.get_total_flops())


def predicted(length: int, mode: ReplayMode, chunk: int) -> float:
    model = cost_model(driver().model.config, SHIPPED, KEEP)
    full = 0 if mode == ReplayMode.OFF else length
    starts = range(0, length, chunk)
    rows = [CostRow(start, min(chunk, length - start), full, logit_rows=0) for start in starts]
    return tera_flops(model, rows)[1] * 1e12


@pytest.mark.parametrize(
    ("length", "chunk"), [(40, 64), (256, 64), (700, 64), pytest.param(1500, 128, marks=pytest.mark.slow)]
)
def test_operations_of_compact_against_off_are_those_of_the_formula(length: int, chunk: int) -> None:
    got = counted(length, ReplayMode.COMPACT, chunk) / counted(length, ReplayMode.OFF, chunk)
    want = predicted(length, ReplayMode.COMPACT, chunk) / predicted(length, ReplayMode.OFF, chunk)
    assert got == pytest.approx(want, rel=0.05)


@pytest.mark.parametrize("mode", [ReplayMode.OFF, ReplayMode.COMPACT])
def test_operations_of_a_prefill_are_those_of_the_formula(mode: ReplayMode) -> None:
    assert counted(512, mode, 64) == pytest.approx(predicted(512, mode, 64), rel=0.05)
