"""However the engine is set, the same requests get the same tokens (backend ``cpu``, shipped model).

The gate runs a few short requests, the nightly two hundred longer ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from e2e_workload import Job, Result, comparable, pool_of, run_jobs, workload

from deepinfer_core import LLM
from deepinfer_core.assembly import memory

pytestmark = pytest.mark.timeout(300)  # seconds on an idle machine, minutes on a crowded one

SEED = 11
BASE: dict[str, Any] = {"block_size": 16, "max_num_seqs": 32, "overlap": False}
SIZES = {"gate": (26, 40), "nightly": (200, 400)}
"""Name -> (requests, tokens of the longest prompt)."""
LONG = [pytest.mark.slow, pytest.mark.timeout(3600)]
SCALES = ["gate", pytest.param("nightly", marks=LONG)]


class Reference:
    """The results of a roomy engine, made once for each size."""

    def __init__(self) -> None:
        self.llm = LLM(**BASE)
        self._made: dict[str, tuple[list[Job], list[Result]]] = {}

    def of(self, scale: str) -> tuple[list[Job], list[Result]]:
        if scale not in self._made:
            count, longest = SIZES[scale]
            print(f"seed {SEED}")
            jobs = workload(
                count,
                longest=longest,
                vocab_size=self.llm.built.vocab_size,
                limit=self.llm.built.max_model_len,
                seed=SEED,
            )
            self._made[scale] = jobs, comparable(jobs, run_jobs(self.llm, jobs))
        return self._made[scale]


@pytest.fixture(scope="module")
def reference() -> Iterator[Reference]:
    made = Reference()
    yield made
    made.llm.close()


def check_equal(reference: Reference, scale: str, settings: Mapping[str, Any]) -> Any:
    """Run the jobs under ``settings`` and return the core's counters."""
    jobs, wanted = reference.of(scale)
    with LLM(**{**BASE, **settings}) as llm:
        found = comparable(jobs, run_jobs(llm, jobs))
        stats = llm.built.engine.core.stats()
    different = [i for i, (a, b) in enumerate(zip(wanted, found, strict=True)) if a != b]
    if different:
        first = different[0]
        raise AssertionError(f"requests {different} differ; the first: {wanted[first]} became {found[first]}")
    return stats


@pytest.mark.parametrize("scale", SCALES)
def test_workload_ends_in_every_way(reference: Reference, scale: str) -> None:
    jobs, results = reference.of(scale)
    ends = {(r.finish_reason, r.finish_detail) for r in results}
    assert {("length", "max_tokens"), ("stop", "stop_string"), ("stop", "stop_token"), ("abort", "")} <= ends
    assert "too_long" in {reason for reason, _ in ends}
    assert any(job.params.temperature > 0 for job in jobs)


@pytest.mark.parametrize("scale", SCALES)
def test_two_steps_in_flight_change_no_token(reference: Reference, scale: str) -> None:
    stats = check_equal(reference, scale, {"overlap": True})
    assert stats.overrun_rows > 0  # an answer that a stop id ends is in the next step already


@pytest.mark.parametrize(
    ("scale", "max_chunk", "overlap"),
    [("gate", 16, True), *(pytest.param("nightly", *each, marks=LONG) for each in ((7, True), (7, False), (64, True)))],
)
def test_chunk_budget_changes_no_token(reference: Reference, scale: str, max_chunk: int, overlap: bool) -> None:
    stats = check_equal(reference, scale, {"max_chunk": max_chunk, "overlap": overlap})
    assert stats.preemptions == 0


@pytest.mark.parametrize("scale", [pytest.param("nightly", marks=LONG)])
def test_block_size_changes_no_token(reference: Reference, scale: str) -> None:
    check_equal(reference, scale, {"block_size": 128})


FORCED = [(None, False), (None, True), (7, False), (7, True)]


@pytest.mark.parametrize(
    ("scale", "max_chunk", "overlap"),
    [("gate", None, True), *(pytest.param("nightly", *each, marks=LONG) for each in FORCED)],
)
def test_forced_preemption_changes_no_token(
    reference: Reference, scale: str, max_chunk: int | None, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Slots of this model are large beside its blocks: by default they would get half of so small a memory.
    monkeypatch.setattr(memory, "SLOT_SHARE", 1.0)
    longest = SIZES[scale][1]
    blocks, seqs = -(-(longest + 40) // 16) + 6, 12
    pool = {
        "kv_memory": pool_of(reference.llm, blocks=blocks, slots=14),
        "max_num_seqs": seqs,
        "max_chunk": max_chunk,
        "overlap": overlap,
    }
    with pytest.warns(UserWarning, match="the caches hold"):
        stats = check_equal(reference, scale, pool)
    assert stats.preemptions > 0
    assert stats.main.total == blocks


@pytest.mark.parametrize("scale", SCALES)
def test_solo_runs_equal_the_batch(reference: Reference, scale: str) -> None:
    jobs, wanted = reference.of(scale)
    for i in range(1, len(jobs), 6):
        assert comparable([jobs[i]], run_jobs(reference.llm, [jobs[i]])) == [wanted[i]], i
