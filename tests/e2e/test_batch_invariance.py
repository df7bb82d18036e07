"""``--deterministic batch`` on ``cpu``: an answer has the same bits alone and among any others, drafts included.

Compared are token ids, texts, ends, log-probabilities, alternatives, audit statistics, prompt log-probabilities, what
was drafted and accepted, and the confidences of drafts. ``--deterministic run``: a second engine gives all of it again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import evolve
from e2e_invariance import Case, Proposals, kept_proposals, neighbours, outputs_of, require_equal, subjects

from deepinfer_core import LLM, RequestOutput
from deepinfer_core.assembly import build
from deepinfer_core.calibration.verify_curve import VerifyCurve

pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

DRAFTS = 4
BASE: dict[str, Any] = {
    "block_size": 16,
    "max_num_seqs": 48,
    "max_model_len": 128,
    "deterministic": "batch",
    "draft_tokens": DRAFTS,
    "sum_smaller": True,
}
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
CURVE = VerifyCurve(tuple(range(1, 241)), tuple(8.0 + rows for rows in range(1, 241)), ((1, 4, 1.0),), "given")
LENGTHS = {"gate": 6, "nightly": 24}
"""Tokens of each answer."""


def slow(*values: Any) -> list[Any]:
    return [pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=LONG) for value in values]


class Solo:
    """Every subject alone in one roomy engine, and what was proposed for it; made once for each length."""

    def __init__(self) -> None:
        self.llm = LLM(**BASE)
        self.made: dict[str, tuple[list[Case], dict[str, RequestOutput], Proposals]] = {}

    def of(self, scale: str) -> tuple[list[Case], dict[str, RequestOutput], Proposals]:
        if scale not in self.made:
            cases, wanted, proposals = subjects(LENGTHS[scale]), {}, {}
            with kept_proposals(proposals):
                for case in cases:
                    wanted |= outputs_of(self.llm, [case])
            self.made[scale] = cases, wanted, proposals
        return self.made[scale]


@pytest.fixture(scope="module")
def solo() -> Iterator[Solo]:
    made = Solo()
    yield made
    made.llm.close()


def mixed(cases: list[Case], count: int, seed: int) -> list[Case]:
    """``cases`` and neighbours, ``count`` in all, in an order of ``seed``."""
    print(f"seed {seed}")
    around = [*cases, *neighbours(count - len(cases), seed)]
    random.Random(seed).shuffle(around)
    return around


@pytest.mark.parametrize(("scale", "seed"), [("gate", 3), *slow(*(("nightly", seed) for seed in range(4)))])
def test_batches_of_8_and_33_give_the_bits_of_the_solo_runs(solo: Solo, scale: str, seed: int) -> None:
    cases, wanted, alone = solo.of(scale)
    together: Proposals = {}
    with kept_proposals(together):
        found = outputs_of(solo.llm, mixed(cases, 33, seed))
    require_equal(wanted, found, "33")
    shared = alone.keys() & together.keys()
    assert len(shared) > 2 * len(cases)  # steps beyond the end of an answer depend on the steps in flight
    assert {key: together[key] for key in shared} == {key: alone[key] for key in shared}
    for first in range(0, len(cases), 4):
        some = cases[first : first + 4]
        found = outputs_of(solo.llm, mixed(some, 8, seed + first + 1))
        require_equal({case.name: wanted[case.name] for case in some}, found, "8")


@pytest.mark.parametrize("scale", ["gate", *slow("nightly")])
def test_pairs_give_the_bits_of_the_solo_runs(solo: Solo, scale: str) -> None:
    cases, wanted, _ = solo.of(scale)
    for one, other in zip(cases[0::2], cases[1::2], strict=False):
        found = outputs_of(solo.llm, [other, one])
        require_equal({case.name: wanted[case.name] for case in (one, other)}, found, "2")


@pytest.mark.parametrize("scale", ["gate", *slow("nightly")])
def test_order_of_the_requests_changes_no_bit(solo: Solo, scale: str) -> None:
    cases, wanted, _ = solo.of(scale)
    require_equal(wanted, outputs_of(solo.llm, cases[::-1]), "reversed")


SETTINGS: list[tuple[dict[str, Any], str]] = [({"max_chunk": size}, "nightly") for size in (1, 2, 3, 5, 16, 37, 64)]
SETTINGS += [({"overlap": False}, "nightly"), ({"max_num_seqs": 3}, "nightly"), ({"max_chunk": 7}, "nightly")]


@pytest.mark.parametrize(
    ("settings", "scale"), [({"max_chunk": 7, "overlap": False}, "gate"), *slow(*SETTINGS)], ids=str
)
def test_chunks_and_steps_in_flight_change_no_bit(solo: Solo, settings: dict[str, Any], scale: str) -> None:
    cases, wanted, _ = solo.of(scale)
    with LLM(**{**BASE, **settings}) as llm:
        found = outputs_of(llm, mixed(cases, 33, 5))
    require_equal(wanted, found, str(settings))


@pytest.mark.parametrize(("overlap", "scale"), [(True, "gate"), *slow((True, "nightly"), (False, "nightly"))])
def test_forced_preemption_changes_no_bit(
    solo: Solo, overlap: bool, scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts that were lost count in ``drafted_tokens`` and stand beside tokens, so those are left out."""
    cases, wanted, _ = solo.of(scale)
    planned = build.plan_pools
    monkeypatch.setattr(build, "plan_pools", lambda *args, **more: evolve(planned(*args, **more), num_blocks=9))
    with LLM(**{**BASE, "overlap": overlap, "max_num_seqs": 8}) as llm:
        found = outputs_of(llm, mixed(cases, 20, 8))
        stats = llm.built.engine.core.stats()
    assert stats.preemptions > 0
    require_equal(wanted, found, "preempted", with_drafts=False)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"draft_tokens": 0}, "gate"),
        *slow(
            *(({"draft_tokens": count}, "nightly") for count in (0, 1, 3)),
            ({"draft_schedule": "confidence"}, "nightly"),
        ),
    ],
    ids=str,
)
def test_drafts_and_their_lengths_change_no_bit_of_what_is_emitted(
    solo: Solo, settings: dict[str, Any], scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases, wanted, _ = solo.of(scale)
    monkeypatch.setattr(build, "curve_for", lambda *args: CURVE)
    with LLM(**{**BASE, **settings}) as llm:
        found = outputs_of(llm, mixed(cases, 33, 6))
    require_equal(wanted, found, str(settings), with_drafts=False)


@pytest.mark.parametrize(
    ("settings", "scale"),
    [
        ({"verify": "rejection"}, "gate"),
        *slow(
            ({"verify": "coupled", "draft_schedule": "confidence"}, "nightly"),
            ({"verify": "rejection", "max_chunk": 7, "max_num_seqs": 5}, "nightly"),
            ({"draft_tokens": 0}, "nightly"),
        ),
    ],
    ids=str,
)
def test_run_gives_everything_again_in_a_second_engine(
    settings: dict[str, Any], scale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the seeds of requests that bring none, and proposals with their confidences."""
    monkeypatch.setattr(build, "curve_for", lambda *args: CURVE)
    unseeded = [evolve(case, params=case.params.updated({"seed": None})) for case in subjects(LENGTHS[scale])]
    runs = []
    for _ in range(2):
        proposals: Proposals = {}
        with kept_proposals(proposals), LLM(**{**BASE, "deterministic": "run", **settings}) as llm:
            runs.append((outputs_of(llm, unseeded), proposals))
    require_equal(runs[0][0], runs[1][0], str(settings))
    if settings.get("draft_schedule") != "confidence":  # measured times decide there which steps there are
        assert runs[0][1] == runs[1][1]
