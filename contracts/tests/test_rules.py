"""Every rule can fail, and what is damaged is what the violation names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from c_library import CLibrary, python_verdict
from corruptions import corruptions
from recorded import CASES, limits, record

from deepinfer_contracts import ContractViolation, Level, ReplayMode, validate
from deepinfer_contracts._evaluate import Env, RuleSpec
from deepinfer_contracts._validation import SPECS, _largest, _Run


def i32(*values: Any) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int32)


def uids(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.uint64)


FLOOR = i32(0, 11, 14, 15)
"""The last request keeps all rows of its chunk, and a position in front of it."""


def replayed() -> Any:
    """The prefill record with bounded replay: the last rows of each request, whose windows begin with them."""
    r = record("prefill", "InputMetadataV41")
    rows = i32(0, 12, 13, 21, 22, *range(23, 28))
    r.rp_query_index, r.rp_cu_q, r.rp_total_q = rows, i32(0, 1, 3, 5, 10), len(rows)
    r.rp_positions, r.rp_slot_swa, r.rp_num_live = r.positions[rows], r.slot_swa[rows], len(rows)
    r.rp_floor = FLOOR.copy()
    new = [(0, 1), (1, 1), (1, 2), (3, 1), (3, 2)]
    r.rp_swa_pivots = i32(*([0, 0, 24 + first, n] for first, n in new), *([23, 1, 29, n] for n in range(1, 6)))
    r.rp_ks, r.rp_ke = ({k: v[rows] for k, v in x.items()} for x in (r.ks, r.ke))
    r.rp_ca_offset_len = {k: v[rows] for k, v in r.ca_offset_len.items()}
    return r


def masked() -> Any:
    """The same with all rows, of which 11 and 7 see no window."""
    r = record("prefill", "InputMetadataV41")
    r.rp_floor = FLOOR.copy()
    pivots = [[0, 0, 24, 1], *[[0, 0, 0, 0]] * 11, [0, 0, 36, 1], [0, 0, 36, 2], *[[0, 0, 0, 0]] * 7]
    r.rp_swa_pivots = i32(*pivots, [0, 0, 45, 1], [0, 0, 45, 2], *([23, 1, 47, n] for n in range(1, 6)))
    return r


def mirrored() -> Any:
    """The prefill record of a context-parallel group of 2: q = 1, 13, 9, 5."""
    r = record("prefill", "InputMetadataV41")
    r.cp_mirror_len = 2 * (1 + 4 + 3 + 2)
    r.mirror_index = np.arange(r.cp_mirror_len, dtype=np.int32)
    r.mirror_reverse = np.zeros(r.total_q, dtype=np.int32)
    r.valid_token_mask = np.ones(r.total_q, dtype=np.bool_)
    return r


def fed() -> Any:
    """The decode record with rows that continue a step in flight: K = 2, G = 3."""
    r = record("decode", "InputMetadataV41")
    r.fresh_ids, r.ngram_win = np.ones((4, 3), np.int32), np.full((4, 4), -1, np.int32)
    return r


def scheduled() -> Any:
    r = record("decode", "SchedulerOutputs")
    r.bt_delta = i32([1, 2, 3], [2, 0, 39])
    return r


def lean() -> Any:
    """The decode inputs of a backend that keeps block tables by row slot."""
    r, step = record("decode", "InputMetadataV41"), record("decode", "SchedulerOutputs")
    r.row_slot_idx, r.block_tables = np.repeat(step.row_slot, step.seqlens_q), None
    return r


def events() -> Any:
    return record("decode", "EventBatch")


def put(field: str, at: Any, value: Any) -> Callable[[Any], None]:
    def change(r: Any) -> None:
        array = getattr(r, field)
        (array[2] if isinstance(array, dict) else array)[at] = value

    return change


def assign(**values: Any) -> Callable[[Any], None]:
    def change(r: Any) -> None:
        for name, value in values.items():
            setattr(r, name, value)

    return change


def longer_history(r: Any) -> None:
    """Thirteen segments for four requests; their lengths still add up."""
    first = r.load_swa[0]
    parts = [[first[0], first[1] + k, first[1] + k + 1, first[3] + k] for k in range(first[2] - first[1])]
    for row in r.load_swa[1:]:
        parts += [[row[0], row[1] + k, row[1] + k + 1, row[3] + k] for k in range(row[2] - row[1])]
    r.load_swa = i32(*parts)


REPLAY = {"replay_mode": int(ReplayMode.COMPACT)}
MASKED = {"replay_mode": int(ReplayMode.MASK)}
CP = {"cp": 2}
TABLES = {"persistent_tables": 1}
# (valid record, limits, damage, the rule that must fail first)
SPECIAL: list[tuple[Callable[[], Any], dict[str, int], Callable[[Any], None], str]] = [
    (scheduled, TABLES, put("bt_delta", (0, 0), 9), "all(1 <= bt_delta[:, 0] <= max_num_seqs)"),
    (scheduled, TABLES, put("bt_delta", (1, 1), 64), "all(0 <= bt_delta[:, 1] < MB)"),
    (scheduled, TABLES, put("bt_delta", (1, 2), 40), "all(1 <= bt_delta[:, 2] < NB)"),
    (scheduled, TABLES, assign(finished_uid=uids(7, 101)), "disjoint(finished_uid, seq_uid)"),
    (scheduled, TABLES, assign(ignored_uid=uids(103)), "disjoint(ignored_uid, seq_uid)"),
    (scheduled, TABLES, assign(held_uid=uids(100, 11)), "disjoint(held_uid, seq_uid)"),
    (scheduled, TABLES, assign(preempted_uid=uids(102)), "disjoint(preempted_uid, seq_uid)"),
    (lean, {}, put("row_slot_idx", 2, 0), "all(0 <= row_slot_idx <= max_num_seqs"),
    (lean, {}, put("row_slot_idx", 2, 3), "all(row_slot_idx == repeat(step.row_slot, step.seqlens_q))"),
    (mirrored, CP, assign(cp_mirror_len=19, mirror_index=np.zeros(19, np.int32)), "cp > 1 implies"),
    (mirrored, CP, put("mirror_index", 3, 28), "all(-1 <= mirror_index < T)"),
    (mirrored, CP, put("mirror_reverse", 5, 20), "all(-1 <= mirror_reverse < cp_mirror_len)"),
    (replayed, REPLAY, put("rp_query_index", 6, 28), "all(0 <= rp_query_index < T)"),
    (replayed, REPLAY, put("rp_query_index", 2, 12), "all(diff(rp_query_index) >= 1)"),
    (replayed, REPLAY, put("rp_cu_q", 0, -1), "rp_cu_q[0] == 0"),
    (replayed, REPLAY, put("rp_cu_q", 2, 1), "all(diff(rp_cu_q) >= 1)"),
    (replayed, REPLAY, put("rp_cu_q", 4, 11), "rp_cu_q[-1] == Tc"),
    (replayed, REPLAY, put("rp_positions", 3, 1), "all(rp_positions == gather(positions, rp_query_index))"),
    (replayed, REPLAY, put("rp_swa_pivots", (2, 1), -1), "all(rp_swa_pivots >= 0)"),
    (replayed, REPLAY, put("rp_ks", 4, 99), "all(rp_ks[r] == gather(ks[r], rp_query_index))"),
    (replayed, REPLAY, put("rp_ke", 4, 99), "all(rp_ke[r] == gather(ke[r], rp_query_index))"),
    (
        replayed,
        REPLAY,
        put("rp_ca_offset_len", (1, 1), 99),
        "all(rp_ca_offset_len[r][:, 1] == (rp_positions + 1) // r)",
    ),
    (replayed, REPLAY, put("rp_ca_offset_len", (1, 0), -1), "all(rp_ca_offset_len[r] >= 0)"),
    (replayed, REPLAY, put("rp_slot_swa", 0, 60), "all(-1 <= rp_slot_swa < num_swa_slots * SW)"),
    (
        replayed,
        REPLAY,
        put("rp_ca_offset_len", (1, 0), 2),
        "all(rp_ca_offset_len[r][:, 0] == repeat(cumsum(",
    ),
    (replayed, REPLAY, put("rp_slot_swa", 1, 22), "all(rp_slot_swa == where(rp_positions >= repeat("),
    (replayed, REPLAY, put("rp_floor", 0, -1), "all(rp_floor >= 0)"),
    (replayed, REPLAY, put("rp_floor", 1, 12), "all(diff(rp_cu_q) == diff(cu_seqlens_q) or diff(rp_cu_q) == maximum("),
    (
        replayed,
        REPLAY,
        put("rp_swa_pivots", (2, 3), 1),
        "replay_mode == ReplayMode.COMPACT implies all(rp_swa_pivots[:, 1] +",
    ),
    (
        replayed,
        REPLAY,
        put("rp_swa_pivots", (2, 2), 26),
        "replay_mode == ReplayMode.COMPACT implies all(rp_swa_pivots[:, 3] > 0",
    ),
    (
        masked,
        MASKED,
        put("rp_swa_pivots", (13, 3), 1),
        "replay_mode == ReplayMode.MASK implies all(rp_swa_pivots[:, 1] +",
    ),
    (
        masked,
        MASKED,
        put("rp_swa_pivots", (13, 2), 9),
        "replay_mode == ReplayMode.MASK implies all(rp_swa_pivots[:, 3] > 0",
    ),
    (
        replayed,
        REPLAY,
        put("rp_swa_pivots", (6, 0), 22),
        "replay_mode == ReplayMode.COMPACT implies all(rp_swa_pivots[:, 1] > 0",
    ),
    (
        masked,
        MASKED,
        put("rp_swa_pivots", (24, 0), 22),
        "replay_mode == ReplayMode.MASK implies all(rp_swa_pivots[:, 1] > 0",
    ),
    (replayed, REPLAY, lambda r: setattr(r, "rp_num_live", 11), "0 <= rp_num_live <= rp_total_q"),
    (
        replayed,
        REPLAY,
        lambda r: setattr(r, "rp_num_live", 9),
        "replay_mode == ReplayMode.COMPACT implies rp_num_live == sum(",
    ),
    (replayed, REPLAY, longer_history, "LS <= 3 * N"),
    (replayed, REPLAY, put("load_main", (0, 2), 5), "all(load_main[r][:, 2] <= BS // r)"),
    (fed, {}, put("fresh_ids", (3, 2), 50), "all(0 <= fresh_ids < V)"),
    (fed, {}, put("ngram_win", (0, 3), -2), "all(ngram_win >= -1)"),
    (events, {}, put("seq_uid", 3, 101), "all((shift(flags, 0) & EventFlags.LAST) != 0 implies"),
    (events, {}, put("seq_uid", 4, 101), "injective(where("),
]


def step_of(r: Any) -> Any:
    return record("prefill" if getattr(r, "is_prompt", 0) else "decode", "SchedulerOutputs")


@pytest.mark.parametrize("number", range(len(SPECIAL)))
def test_rule_fails_first_for_its_damage(c_checks: CLibrary, number: int) -> None:
    make, changes, damage, text = SPECIAL[number]
    step = step_of(make())
    validate(make(), limits(**changes), Level.FULL, step=step)
    damaged = make()
    damage(damaged)
    verdict = python_verdict(damaged, limits(**changes), Level.FULL, step)
    assert verdict is not None
    assert verdict.check.startswith(text)
    assert c_checks.check(damaged, limits(**changes), Level.FULL, step, 1 << 12) == verdict


def broken(rules: list[RuleSpec], r: Any, step: Any, **changes: int) -> list[RuleSpec]:
    """Those of ``rules`` that ``r`` breaks, each tried alone."""
    spec = SPECS[r.CONTRACT]
    run = _Run(spec, Env(r, limits(**changes), step, spec.dims, max(_largest(r), _largest(step))), int(Level.FULL), 0)
    out = []
    for rule in rules:
        try:
            run._rule(rule)
        except ContractViolation:
            out.append(rule)
        except (AttributeError, IndexError, TypeError, ValueError):
            continue  # another dtype or rank: refused before any rule runs
    return out


def damaged_records() -> Iterator[tuple[Any, Any, dict[str, int]]]:
    """(record, step, changed limits)."""
    for make, changes, damage, _ in SPECIAL:
        damaged = make()
        damage(damaged)
        yield damaged, step_of(damaged) if make in (lean, replayed, masked) else None, changes
    yield record("decode", "InputMetadataV41"), None, {"max_blocks": 1 << 28}
    for kind, name in CASES:
        step = record(kind, "SchedulerOutputs")
        for _, _, damaged in corruptions(record(kind, name)):
            yield damaged, step, {}


def test_every_rule_of_every_record_can_fail() -> None:
    never = {name: list(spec.rules) for name, spec in SPECS.items()}
    for damaged, step, changes in damaged_records():
        left = never[damaged.CONTRACT]
        for rule in broken(left, damaged, step, **changes):
            left.remove(rule)
    base = never.pop("InputMetadata")  # no recorded record; its rules are the first ones of the extension
    extension = SPECS["InputMetadataV41"].rules[: len(base)]
    assert [(r.index, r.field, r.text) for r in base] == [(r.index, r.field, r.text) for r in extension]
    missed = [(name, r.field, r.text) for name, rules in never.items() for r in rules]
    assert not missed, missed


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_damaged_form_is_refused_with_the_name_of_its_field(kind: str, name: str) -> None:
    forms = ("another dtype", "another rank", "one column more", "column order")
    seen = 0
    for field, label, damaged in corruptions(record(kind, name)):
        if label.endswith(forms) and label != "stop_ids one column more":  # any number of stop ids is right
            seen += 1
            with pytest.raises(ContractViolation) as caught:
                validate(damaged, limits())
            free_width = label.endswith("one column more") and caught.value.check.startswith("shape")
            assert caught.value.field == field or free_width, f"{label}: {caught.value}"
    assert seen > 20
