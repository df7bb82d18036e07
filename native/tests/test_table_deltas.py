"""Tables that a backend keeps by row slot from ``bt_delta`` alone equal the tables that the core hands out whole.

Two cores get the same commands: one publishes CSR tables, the other only deltas. The consumer is plain NumPy.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from native_driver import VOCAB, Driver, require, small_config

from deepinfer_contracts import StepKind
from deepinfer_native import Core


class PersistentTables:
    """What a backend keeps on its device: a row for every row slot, changed only by deltas."""

    def __init__(self, config):
        self.table = np.zeros((config.max_num_seqs + 1, config.max_blocks), np.int32)

    def apply(self, outputs):
        slot, column, block = outputs.bt_delta.T
        self.table[slot, column] = block

    def require_rows(self, outputs, csr):
        """The row of each request of the step begins with the blocks that ``csr`` lists for it."""
        offsets = csr.bt_offsets.tolist()
        for i, slot in enumerate(outputs.row_slot.tolist()):
            ids = csr.bt_ids[offsets[i] : offsets[i + 1]]
            np.testing.assert_array_equal(self.table[slot, : len(ids)], ids)


class Twins(Driver):
    """A driver whose commands also go to a second core that publishes no CSR tables."""

    def __init__(self, config):
        super().__init__(config)
        self.lean_config = attrs.evolve(config, csr_tables=False)
        self.lean = Core(self.lean_config)
        self.tables = PersistentTables(config)
        self.preempted = 0
        self.slots = {}

    def submit(self, prompt, **more):
        request = super().submit(prompt, **more)
        require(self.lean.submit(prompt, eos_ids=request.stop, **more) == request.uid, "uid")
        return request

    def abort(self, uid):
        self.core.abort([uid])
        self.lean.abort([uid])

    def schedule(self, mode=None):
        full = super().schedule(mode)
        lean = self.lean.schedule_local()
        require(lean.bt_offsets is None and lean.bt_ids is None, "CSR tables are present")
        for name in ("seq_uid", "row_slot", "bt_delta", "remap", "seqlens_k", "preempted_uid"):
            np.testing.assert_array_equal(getattr(lean, name), getattr(full, name), err_msg=name)
        self.preempted += len(lean.preempted_uid)
        self.tables.apply(lean)
        self.tables.require_rows(lean, full)
        for uid, slot in zip(lean.seq_uid.tolist(), lean.row_slot.tolist(), strict=True):
            self.slots.setdefault(slot, set()).add(uid)
        if lean.num_reqs:
            self.check_inputs_alike(full, lean)
        return full

    def check_inputs_alike(self, full, lean):
        record, ours = self.core.pack(full.step_id), self.lean.pack(lean.step_id)
        ours.validate(self.lean.limits, 2, step=lean)
        np.testing.assert_array_equal(ours.positions, record.positions)
        for ratio, slots in record.slot_main.items():
            np.testing.assert_array_equal(ours.slot_main[ratio], slots)
        require(ours.block_tables is None, "block_tables are present")
        if lean.kind == StepKind.DECODE:
            np.testing.assert_array_equal(ours.row_slot_idx, np.repeat(lean.row_slot, lean.seqlens_q))
            used = (record.context_lens + self.config.block_size - 1) // self.config.block_size
            for t, n in enumerate(used.tolist()):
                np.testing.assert_array_equal(
                    self.tables.table[ours.row_slot_idx[t], :n], record.block_tables[t, :n], err_msg="table"
                )
        else:
            require(ours.row_slot_idx is None, "row_slot_idx in prefill")

    def commit(self):
        step, kind, rows = self.open.pop(0)
        output = self.sample(kind, rows)
        self.lean.commit(step, output)
        batch = self.core.commit(step, output)
        self.follower.feed(batch)
        return batch

    def done(self, step):
        super().done(step)
        self.lean.step_done(step)

    def poll(self):
        super().poll()
        self.lean.poll_events()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("drafts", [0, 3])
def test_deltas_alone_keep_the_tables_over_preemption_aborts_and_slot_reuse(depth, drafts):
    driver = Twins(small_config(num_blocks=26, depth=depth, num_draft=drafts, validation="full"))
    rng = np.random.default_rng(10 * depth + drafts)
    print("seed", 10 * depth + drafts)
    waiting, live = 40, []
    for _ in range(2000):
        if waiting and len(live) < 6:
            prompt = rng.integers(0, VOCAB, rng.integers(1, 30)).tolist()
            live.append(driver.submit(prompt, max_tokens=int(rng.integers(4, 40)), min_tokens=3).uid)
            waiting -= 1
        if live and rng.random() < 0.02:
            driver.abort(live[int(rng.integers(len(live)))])
        if not driver.core.unfinished and not waiting:
            break
        driver.step()
        live = [uid for uid in live if driver.follower.requests[uid].reason == 0]
    while driver.open:
        driver.retire()
    driver.poll()
    assert driver.core.unfinished == driver.lean.unfinished == 0
    driver.lean.check()
    driver.lean.audit()
    assert driver.preempted > 0, "the pool was never short"
    assert max(len(uids) for uids in driver.slots.values()) > 3, "no row slot was used again"
