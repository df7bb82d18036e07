"""Results beside entries: every bit on the same kind of machine, a tolerance elsewhere, and what is compared at all."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from verify_entries import ELSEWHERE, HERE, entry, sample

from deepinfer_core.errors import BaselineError, CommandUsageError
from deepinfer_verify.ppl.comparison import TOLERANCE, Verdict, exact_differences, other_entry
from deepinfer_verify.ppl.outcomes import compared, updated
from deepinfer_verify.ppl.report import lines_of
from deepinfer_verify.ulps import ulps

PATH = Path("b.json")


def table(*entries):
    return {item.key: item for item in entries}


def nudged(value: float, steps: int = 1) -> float:
    for _ in range(steps):
        value = float(np.nextafter(np.float32(value), np.float32(-math.inf)))
    return value


def test_equal_results_are_equal_and_said_so():
    outcome = compared(entry(), table(entry(), entry(ELSEWHERE)), PATH)
    assert (outcome.verdict, outcome.differences) == (Verdict.EQUAL, ())
    assert "\n".join(lines_of(outcome)) == (
        "w: perplexity 2.929993 over 5 decoded tokens of 2 samples behind 8, 2 of 10 drafts accepted\n"
        f"  equal, bit by bit: {HERE}/w"
    )


def test_one_bit_of_one_token_is_a_difference_with_token_and_distance():
    now = entry(HERE, sample(0), sample(1, (-0.5, nudged(-0.125, 3))))
    outcome = compared(now, table(entry()), PATH)
    assert outcome.verdict is Verdict.DIFFERENT
    [difference] = outcome.differences
    assert (difference.sample, difference.token, difference.ulps, difference.count) == ("w-1", 1, 3, 1)
    assert list(lines_of(outcome))[1:] == [
        f"  DIFFERENT in 1 sample: {HERE}/w",
        (
            "  w-1: token 1: log-probability -0x1.0000060000000p-3 (-0.125000045), "
            "baseline -0x1.0000000000000p-3 (-0.125), 3 ulp apart, relative 3.6e-07; 1 token differs in all"
        ),
    ]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"sum_logprob": math.nextafter(-4.75, 0)}, "sum"),
        ({"ppl": 2.0}, "perplexity"),
        ({"accepted": (0, 1)}, "drafts"),
        ({"verified": (3, 3)}, "drafts"),
        ({"tokens_sha256": "1"}, "tokens"),
        ({"logprobs": (-1.5,)}, "log-probabilities"),
        ({"id": "x"}, "samples"),
    ],
)
def test_every_field_of_a_sample_counts(change, what):
    old = entry(HERE, sample(0))
    [difference] = exact_differences(old, entry(HERE, evolve(sample(0), **change)))
    assert difference.what == what
    assert difference.text


def test_signs_of_zero_and_values_outside_the_format():
    assert ulps(0.0, -0.0, "f") == 0
    assert ulps(-1.0, nudged(-1.0, 7), "f") == 7
    assert ulps(5e-324, -5e-324, "d") == 2
    assert ulps(1e300, 1.0, "f") is None
    assert ulps(0.1, 1.0, "f") is None


def test_other_machine_is_compared_within_the_tolerance_and_said_so():
    for share, verdict in ((0.5, Verdict.NEAR), (1.5, Verdict.DIFFERENT)):
        logprobs = (-1.5, -0.25, -3.0 - 4.75 * TOLERANCE * share)
        now = entry(HERE, sample(0, logprobs), sample(1, (-0.5, -0.125)))
        outcome = compared(now, table(entry(ELSEWHERE)), PATH)
        assert outcome.verdict is verdict
        assert outcome.compared_with == f"{ELSEWHERE}/w"
        text = "\n".join(lines_of(outcome))
        assert f"b.json has no entry {HERE}/w: compared within 1e-06 with another machine's" in text


def test_tokens_of_another_machine_that_differ_are_a_difference():
    now = entry(HERE, evolve(sample(0), tokens_sha256="1"), sample(1, (-0.5, -0.125)))
    outcome = compared(now, table(entry(ELSEWHERE)), PATH)
    assert (outcome.verdict, outcome.differences[0].what) == (Verdict.DIFFERENT, "tokens")
    assert outcome.as_record()["verdict"] == "different"


def test_other_machine_is_one_of_this_backend_workload_and_checkpoint_with_this_torch_first():
    mine = entry()
    old_torch = entry("cpu-aaa-torch-2.12.0")
    same_torch = entry("cpu-zzz-torch-2.13.0")
    strangers = (
        entry("cuda-sm_90-torch-2.13.0"),
        entry("cpu-bbb-torch-2.13.0", name="other"),
        entry("cpu-ccc-torch-2.13.0", model="blake2b:11"),
    )
    assert other_entry(table(*strangers), mine) is None
    assert other_entry(table(*strangers, old_torch), mine) == old_torch
    assert other_entry(table(*strangers, old_torch, same_torch), mine) == same_torch


def test_released_rounding_is_not_compared_between_machines():
    released = {"name": "w", "in": 8, "arithmetic": "released"}
    now, theirs = (entry(machine, workload=released) for machine in (HERE, ELSEWHERE))
    outcome = compared(now, table(theirs), PATH)
    assert outcome.verdict is Verdict.NOT_COMPARED
    assert "others say nothing" in outcome.note


def test_without_any_entry_nothing_is_compared():
    outcome = compared(entry(), {}, PATH)
    assert list(lines_of(outcome))[1:] == [
        "  not compared",
        f"  b.json has no entry {HERE}/w, nor another machine's for this model and backend",
    ]


def test_entry_of_other_inputs_or_another_checkpoint_is_an_error_and_no_difference():
    longer = {"name": "w", "in": 9, "arithmetic": "exact"}
    for other, reason in (
        (entry(model="blake2b:11"), "the checkpoint is blake2b:00, was blake2b:11"),
        (entry(workload=longer), "in is 8, was 9"),
    ):
        with pytest.raises(BaselineError, match="is of something else than what runs here") as caught:
            compared(entry(), table(other), PATH)
        assert caught.value.reason == reason


def test_update_adds_keeps_and_replaces_with_a_reason():
    now = entry()
    assert updated(now, {}, PATH, None).written == "added"
    again = updated(evolve(now, created="2027-01-01"), table(now), PATH, None)
    assert (again.written, again.found) == ("unchanged", now)
    changed = entry(HERE, sample(0), sample(1, (-0.5, nudged(-0.125))))
    with pytest.raises(CommandUsageError) as caught:
        updated(changed, table(now), PATH, None)
    assert "say why with --reason" in caught.value.remedy
    assert "1 ulp apart" in caught.value.reason
    outcome = updated(changed, table(now), PATH, "a new kernel")
    assert (outcome.written, outcome.found.reason, outcome.found.samples) == (
        "replaced",
        "a new kernel",
        changed.samples,
    )
    other = evolve(now, model="blake2b:11")
    with pytest.raises(CommandUsageError) as caught:
        updated(other, table(now), PATH, None)
    assert caught.value.reason == "the checkpoint is blake2b:11, was blake2b:00"
    assert updated(other, table(now), PATH, "a new checkpoint").written == "replaced"
