"""Packed arrays that stay with their rows are written anew where the staging missed a step."""

import numpy as np
from native_driver import small_config

from deepinfer_contracts import SamplerOutput, StepKind, StepMode
from deepinfer_native import Core


def test_places_are_right_behind_steps_that_were_not_packed():
    with Core(small_config(inputs="InputMetadataV41", ratios_sparse=(1,), csr_tables=False)) as core:

        def step(is_packed=True):
            record = core.schedule_local()
            if is_packed:
                packed = core.pack(record.step_id)
            if is_packed and record.kind == StepKind.DECODE:
                np.testing.assert_array_equal(packed.state_slot_idx, record.state_slot)
                np.testing.assert_array_equal(packed.row_slot_idx, record.row_slot)
            n = record.num_reqs
            output = SamplerOutput(
                sampled_ids=np.full(n, 5, np.int32),
                sampled_logprob=np.zeros(n, np.float32),
                row_status=np.zeros(n, np.int8),
            )
            core.commit(record.step_id, output)
            core.step_done(record.step_id)

        uids = [core.submit([3 + i, 4], max_tokens=40, ignore_eos=True) for i in range(3)]
        for _ in range(12):
            step()
        core.abort(uids[:1])  # the rows behind it move up
        core.submit([9, 4], max_tokens=40, ignore_eos=True)
        for _ in range(6):
            step(is_packed=False)
        for _ in range(6):
            step()


def test_places_are_right_behind_calls_that_scheduled_nothing():
    """Such a call changes the arrays of the ring slot for spare ones, which may name the same rows from long ago."""
    config = small_config(inputs="InputMetadataV41", ratios_sparse=(1,), depth=1, row_order="length_desc")
    with Core(config) as core:

        def decode_until_behind(rows, parity):
            """Decode ``rows`` requests until the newest step has ``parity``, at least four times."""
            done = last_id = 0
            while done < 4 or last_id % 2 != parity:
                record = core.schedule_local()
                if record.kind == StepKind.DECODE:
                    assert record.num_reqs == rows
                    packed = core.pack(record.step_id)
                    np.testing.assert_array_equal(packed.swa_slot_idx, record.swa_slot)
                    done += 1
                last_id, n = record.step_id, record.num_reqs
                output = SamplerOutput(
                    sampled_ids=np.full(n, 5, np.int32),
                    sampled_logprob=np.zeros(n, np.float32),
                    row_status=np.zeros(n, np.int8),
                )
                core.commit(record.step_id, output)
                core.step_done(record.step_id)

        def nothing():
            assert core.schedule(StepMode.TRY_PREFILL).num_reqs == 0

        first = core.submit([3, 4], max_tokens=60, ignore_eos=True)
        core.submit([4, 4], max_tokens=60, ignore_eos=True)
        decode_until_behind(rows=2, parity=0)
        core.abort([first])
        decode_until_behind(rows=1, parity=0)
        nothing()  # the arrays in which the second request is row 0 go to the first spare set
        third = core.submit([5] * 30, max_tokens=60, ignore_eos=True)  # longer: goes before it
        decode_until_behind(rows=2, parity=0)
        core.abort([third])
        nothing()
        nothing()  # and come back
        decode_until_behind(rows=1, parity=0)
