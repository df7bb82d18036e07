"""Packed arrays that stay with their rows are written anew where the staging missed a step."""

import numpy as np
from native_driver import small_config

from deepinfer_contracts import SamplerOutput, StepKind
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
