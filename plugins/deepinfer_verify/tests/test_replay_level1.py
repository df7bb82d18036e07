"""Level 1 on the real scheduler and packer, and on arrays that were made wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attrs import evolve

from deepinfer_contracts import StepKind
from deepinfer_verify.replay import level1
from deepinfer_verify.replay.level1 import Suite, run_suite, suites
from deepinfer_verify.replay.rule import MODES, Geometry

SMALL = Suite(
    "tiny",
    Geometry(window=8, keep=14, block=4, ring=11, ratios=(1, 2)),
    drafts=2,
    lengths=(1, 5, 13, 14, 15, 23, 24, 37, 61),
    chunks=(),
    shared=(9, 17, 24),
)


@pytest.mark.parametrize("engine", MODES)
@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
def test_packer_follows_the_rule(engine, chunk):
    findings = run_suite(SMALL, engine, chunk)
    assert findings.kept == []
    kinds = {"hits", "visible keys", "key contents", "key slots"}
    kinds |= {f"{half} windows" for half in ("encoder", "decoder", "decode")}
    kinds |= {"encoder slots", "decode slots"} | ({"decoder slots", "kept rows"} if engine == "compact" else set())
    assert {kind for kind, count in findings.compared.items() if count > 10} == kinds


def test_shipped_suites_have_every_length_around_the_kept_rows_and_hits_of_every_kind():
    for suite in suites():
        g = suite.geometry
        if g.exact is not None:
            assert any(shared > g.exact[0] for shared in suite.shared)
            continue
        assert {1, g.keep - 1, g.keep, g.keep + 1} <= set(suite.lengths)
        assert g.keep % g.ring  # an offset of the ring that nobody may forget
        assert any(chunk % 2 and chunk > 1 for chunk in suite.chunks)
        assert max(suite.chunks) > max(suite.lengths)
        assert any(shared % g.block for shared in suite.shared)
        assert any(shared > g.window + g.block for shared in suite.shared)


def off_by_one(array: Any, column: int, by: int = 1) -> Any:
    """A column of every row moved where it is above 1."""
    out = array.copy()
    out[:, column] = np.where(out[:, column] > 1, out[:, column] + by, out[:, column])
    return out


def per_ratio(by_ratio: Any, change: Any) -> Any:
    return {ratio: change(array) for ratio, array in by_ratio.items()}


PREFILL, DECODE = StepKind.PREFILL, StepKind.DECODE
# What goes wrong: step kind, field, what is done to it, what finds it, the engines that have the field.
FAULTS = {
    "history run too long": (PREFILL, "swa_pivots", lambda a: off_by_one(a, 1), "encoder windows", MODES),
    "history run at another place": (PREFILL, "swa_pivots", lambda a: off_by_one(a, 0, -1), "encoder", MODES),
    "own run too short": (PREFILL, "swa_pivots", lambda a: off_by_one(a, 3, -1), "encoder windows", MODES),
    "decoder window too wide": (PREFILL, "rp_swa_pivots", lambda a: off_by_one(a, 1), "decoder", MODES[1:]),
    "decoder run moved": (PREFILL, "rp_swa_pivots", lambda a: off_by_one(a, 2, -1), "decoder", MODES[1:]),
    "ring offset forgotten": (PREFILL, "slot_swa", lambda a: np.where(a > 12, a - 1, a), "slots", MODES),
    "kept row's slot moved": (
        StepKind.PREFILL,
        "rp_slot_swa",
        lambda a: np.where(a > 12, a - 1, a),
        "slots",
        MODES[2:],
    ),
    "kept row not stored": (
        StepKind.PREFILL,
        "rp_slot_swa",
        lambda a: np.full_like(a, -1),
        "decode windows",
        MODES[2:],
    ),
    "key of a shared block stored": (PREFILL, "slot_main", lambda d: per_ratio(d, abs), "key slots", MODES),
    "key not stored": (PREFILL, "slot_main", lambda d: per_ratio(d, lambda a: a * 0 - 1), "key", MODES),
    "one key too many": (PREFILL, "ke", lambda d: per_ratio(d, lambda a: a + 1), "visible keys", MODES),
    "keys of another": (PREFILL, "ks", lambda d: per_ratio(d, lambda a: np.maximum(a - 1, 0)), "keys", MODES),
    "dense keys moved": (
        StepKind.PREFILL,
        "ca_offset_len",
        lambda d: per_ratio(d, lambda a: off_by_one(a, 0, -1)),
        "",
        MODES,
    ),
    "kept keys moved": (PREFILL, "rp_ke", lambda d: per_ratio(d, lambda a: a - 1), "keys", MODES[2:]),
    "kept positions": (PREFILL, "rp_positions", lambda a: a + 1, "kept rows", MODES[2:]),
    "decode window moved": (DECODE, "swa_offset_len", lambda a: off_by_one(a, 0, -1), "decode windows", MODES),
    "decode window too short": (DECODE, "swa_offset_len", lambda a: off_by_one(a, 1, -1), "decode", MODES),
    "decode slot": (DECODE, "slot_swa", lambda a: a[::-1].copy(), "decode slots", MODES),
    "decode keys": (DECODE, "klen", lambda d: per_ratio(d, lambda a: np.maximum(a - 1, 0)), "visible", MODES),
    "decode key not stored": (DECODE, "slot_main", lambda d: per_ratio(d, lambda a: a * 0 - 1), "key", MODES),
}


@pytest.mark.parametrize(
    ("fault", "engine"), [(fault, engine) for fault, values in FAULTS.items() for engine in values[4]]
)
def test_array_that_is_wrong_is_found(fault, engine, monkeypatch):
    kind, name, change, where, _ = FAULTS[fault]
    read = "read_decode" if kind == StepKind.DECODE else "read_prefill"
    right = getattr(level1, read)

    def wrong(rows: Any, inputs: Any, *more: Any) -> None:
        right(rows, _Changed(inputs, name, change(getattr(inputs, name))), *more)

    monkeypatch.setattr(level1, read, wrong)
    findings = run_suite(evolve(SMALL, lengths=(24, 37)), engine, 8)
    assert any(where in found for found in findings.different)
    assert findings.kept


class _Changed:
    """Inputs with one field in place of theirs."""

    def __init__(self, inputs: Any, name: str, value: Any) -> None:
        self._inputs = inputs
        setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inputs, name)


@pytest.mark.parametrize(("start", "what"), [((1, 8), "hits"), ((0, 0), "hits")])
def test_hit_that_starts_elsewhere_is_found(start, what, monkeypatch):
    monkeypatch.setattr(level1, "hit_of", lambda *args: start)
    assert run_suite(SMALL, "off", 8).different[what] > 0
