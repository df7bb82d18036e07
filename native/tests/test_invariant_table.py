"""The forty invariants of ``spec/engine.md`` 12, and the tests that prove each of them.

Those of ``reference/invariants.py`` are evaluated after every random command on the reference scheduler, which the core
equals field by field at that moment. The others need kernels, samplers, ranks or processes, and name their tests here.
The tests of this module keep the table true: every number is there, and every test that it names exists.
"""

import ast
import hashlib
import os
import random
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from compared import ARRAYS, SCALARS
from native_driver import small_config
from paired import Pair
from reference.invariants import CHECKS

from deepinfer_contracts import EngineType

ROOT = Path(__file__).parents[2]
MACHINE = "native/tests/test_state_machine.py::test_random_commands_of_hypothesis_keep_core_and_reference_equal"
STORM = "native/tests/test_reference_scheduler.py::test_core_equals_the_reference_after_every_command"
RANDOM_C = "native/tests/test_fuzz.py::test_random_calls_keep_the_core_whole"
GROUP = "tests/dp/test_gloo_group.py::test_groups_agree_for_ten_thousand_steps"
EVERY_COMMAND = (MACHINE, STORM)

PROVED_BY = {
    1: EVERY_COMMAND,
    2: EVERY_COMMAND,
    3: EVERY_COMMAND,
    4: (*EVERY_COMMAND, "native/tests/test_errors.py::test_commit_of_another_step_is_refused_and_changes_nothing"),
    5: (*EVERY_COMMAND, RANDOM_C),
    6: EVERY_COMMAND,
    7: EVERY_COMMAND,
    8: EVERY_COMMAND,
    9: (*EVERY_COMMAND, GROUP),
    10: EVERY_COMMAND,
    11: (*EVERY_COMMAND, "native/tests/test_prefix.py::test_chunks_of_a_replay_keep_its_start_and_report_once"),
    # There is no image input and no forced checkpoint yet: what could be cut wrongly is refused.
    12: ("plugins/deepinfer_v41/tests/test_plugin.py::test_image_placeholder_in_a_prompt_is_refused",),
    13: EVERY_COMMAND,
    14: (*EVERY_COMMAND, GROUP),
    15: (*EVERY_COMMAND, RANDOM_C),
    16: (*EVERY_COMMAND, RANDOM_C),
    17: (*EVERY_COMMAND, "native/tests/test_pack_reference.py::test_packed_arrays_equal_the_reference"),
    18: (*EVERY_COMMAND, RANDOM_C),
    19: EVERY_COMMAND,
    20: (*EVERY_COMMAND, "native/tests/test_random_commands.py::test_random_commands_keep_every_invariant"),
    21: (*EVERY_COMMAND, RANDOM_C),
    22: (*EVERY_COMMAND, RANDOM_C, "native/tests/test_pin.py::test_handle_that_was_given_back_is_stale"),
    23: (*EVERY_COMMAND, RANDOM_C),
    24: (
        "native/tests/test_abort.py::test_abort_twice_gives_one_event",
        "native/tests/test_build.py::test_program_passes",
    ),
    25: EVERY_COMMAND,
    26: EVERY_COMMAND,
    27: (
        "deepinfer_core/tests/test_engine.py::test_preemption_does_not_change_the_tokens",
        "tests/e2e/test_equal_tokens.py::test_forced_preemption_changes_no_token",
    ),
    28: (*EVERY_COMMAND, "native/tests/test_streams.py::test_overrun_rows_change_nothing_and_are_counted"),
    29: EVERY_COMMAND,
    30: ("tests/e2e/test_equal_tokens.py::test_two_steps_in_flight_change_no_token",),
    31: (*EVERY_COMMAND, "native/tests/test_policy.py::test_identity_map_is_flagged_exactly_when_every_row_stays"),
    32: (
        "native/tests/test_varlen.py::test_corrected_lengths_are_those_of_the_device_in_the_packed_step",
        "plugins/deepinfer_cpu/tests/test_feed.py::test_lengths_move_back_by_what_was_rejected",
    ),
    33: (
        "plugins/deepinfer_cpu/tests/test_verify.py::test_lengths_equal_those_of_the_scheduler",
        "native/tests/test_verify.py::test_lengths_equal_the_sorted_list_and_sum_to_the_total",
        "native/tests/test_verify.py::test_lengths_take_a_prefix_whose_values_are_the_largest",
    ),
    34: ("native/tests/test_verify.py::test_total_equals_the_brute_force_over_every_total",),
    35: (
        "native/tests/test_varlen.py::test_tokens_do_not_depend_on_the_lengths",
        "deepinfer_core/tests/test_speculation.py::test_lengths_by_confidence_do_not_change_the_tokens",
        "tests/e2e/test_equal_tokens.py::test_chunk_budget_changes_no_token",
    ),
    36: (
        "plugins/deepinfer_v41/tests/test_prefix_replay.py::test_hit_has_the_bits_of_a_run_with_the_windows_cut_by_hand",
        "plugins/deepinfer_v41/tests/test_prefix_replay.py::test_prefix_too_short_to_skip_anything_is_the_cold_run",
    ),
    37: (
        "native/tests/test_pack_reference.py::test_every_new_state_slot_is_zeroed_first",
        "plugins/deepinfer_v41/tests/test_prefix_replay.py::test_poisoned_units_change_nothing",
    ),
    38: EVERY_COMMAND,
    39: (
        STORM,
        "contracts/tests/test_agreement.py::test_damaged_record_gets_the_same_verdict",
        "contracts/tests/test_rules.py::test_damaged_form_is_refused_with_the_name_of_its_field",
    ),
    40: (
        "native/tests/test_policy.py::test_same_trace_gives_the_same_bytes",
        "native/tests/test_invariant_table.py::test_records_do_not_depend_on_the_hash_seed",
    ),
}


@cache
def names_in(path: str) -> set:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_table_has_all_forty():
    assert sorted(PROVED_BY) == list(range(1, 41))


@pytest.mark.parametrize("number", PROVED_BY)
def test_invariant_names_tests_that_exist(number):
    missing = [t for t in PROVED_BY[number] if t.split("::")[1] not in names_in(t.split("::")[0])]
    assert missing == []


def test_every_function_says_its_invariant_and_is_in_the_table():
    numbers = {int(check.__name__.split("_")[1]): check.__doc__ for check in CHECKS}
    assert all(numbers.values())
    stated = {n for n, tests in PROVED_BY.items() if MACHINE in tests}
    # 23 says that the others hold after an abort at any point; 39 is the comparison itself.
    assert stated - {23} == set(numbers)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_reservation_that_waits_for_its_sender_holds_nobody_up(depth):
    """Invariant 14 counts calls that could have scheduled something."""
    pair = Pair(small_config(depth=depth, engine_type=EngineType.COMPLETION, stop_preempted=True))
    pair.reserve([5, 6], max_tokens=3)
    for _ in range(3 * (pair.config.prefill_interval_any + depth + 2)):
        pair.schedule()
    assert pair.watch.empty_calls == 0
    pair.inject(1, 7, has_drafts=False)
    pair.schedule()
    assert len(pair.model.open) == 1


def trace_digest() -> str:
    """A digest of every record of one random trace."""
    rng, digest = random.Random(11), hashlib.sha256()
    pair = Pair(small_config(num_blocks=18, depth=2, prefix_cache=True, window=4, prefix_key=bytes(16)), watch=False)
    for n in range(120):
        if n % 3 == 0:
            prompt = [1] * 9 + [rng.randrange(9) for _ in range(rng.randrange(1, 20))]
            pair.submit(prompt, max_tokens=rng.randrange(1, 20), stop=(3, 5, 7))
        o = pair.core.schedule_local() if not pair.model.open else None
        if o is not None:
            pair.model.schedule_local()
            for name in SCALARS:
                digest.update(str(getattr(o, name)).encode())
            for name in ARRAYS:
                digest.update(getattr(o, name).tobytes())
        while pair.model.open:
            pair.commit(rng)
            pair.step_done(pair.model.committed)
    return digest.hexdigest()


def test_records_do_not_depend_on_the_hash_seed():
    here = str(Path(__file__).parent)
    code = f"import sys; sys.path.insert(0, {here!r}); import test_invariant_table as t; print(t.trace_digest())"
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "4711")
    }
    assert found == {trace_digest() + "\n"}
