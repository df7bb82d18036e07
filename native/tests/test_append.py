"""The quick commit of rows that simply go on (``di_append.c``) against the commit of any row (``di_commit.c``)."""

import ctypes
import ctypes.util

import numpy as np
import pytest
from native_driver import VOCAB, Driver, small_config

from deepinfer_contracts import FinishReason, SamplerOutput
from deepinfer_native import Core

COLUMNS = (
    "seq_uid",
    "kind",
    "flags",
    "token_id",
    "logprob",
    "output_index",
    "prompt_len",
    "finish_reason",
    "drafted",
    "accepted",
    "conf_offset",
    "confidences",
)


class Recorder(Driver):
    """Keeps every event. ``is_plain``: outputs say how much smaller probabilities sum to, which the quick commit leaves
    to the other one; that column is not compared."""

    def __init__(self, config, is_plain, bad_rows=()):
        super().__init__(config)
        self.is_plain = is_plain
        self.bad_rows = bad_rows
        self.batches = []

    def sample(self, kind, rows):
        out = super().sample(kind, rows)
        n = len(rows)
        out.sampled_logprob = (np.arange(n) * np.float32(-6000.0)).astype(np.float32)  # some below the floor
        if self.config.num_draft:
            uids = np.array([r[0] for r in rows], np.float32)
            out.confidence = np.repeat(1 / (1 + uids), self.config.num_draft).reshape(n, -1).astype(np.float32)
            if out.verified_ids is not None:
                out.verified_logprob = np.linspace(0, -20000, len(out.verified_ids), dtype=np.float32)
                odd = len(self.steps) % 5 == 0
                if odd:
                    out.draft_ids[::3, 1] = -1  # no token: becomes a pad
                for i, row in enumerate(rows):
                    self.drafts[row[0]] = [d if d >= 0 else VOCAB - 1 for d in out.draft_ids[i].tolist()]
        if self.is_plain:
            out.sum_smaller = np.zeros(n, np.float32)
        if len(self.steps) in self.bad_rows:
            out.row_status[0] = 1
        return out

    def commit(self):
        batch = super().commit()
        values = [getattr(batch, name) for name in COLUMNS]
        self.batches.append([None if v is None else v.tolist() for v in values])
        return batch


CASES = {
    "plain": {},
    "pipelined": {"depth": 2},
    "drafts": {"num_draft": 3},
    "pipelined_drafts": {"num_draft": 3, "depth": 2},
    "small_pool": {"num_blocks": 18, "depth": 2},
    "short_models": {"max_model_len": 40, "num_draft": 2, "depth": 2},
    "prefix_cache": {"prefix_cache": True, "prefix_key": bytes(16), "depth": 2},
    "many_drafts": {"num_draft": 6, "depth": 2},
    "lengths": {"num_draft": 3, "verify_lengths": "confidence"},
}


def run(case, seed, is_plain, bad_rows=()):
    rng = np.random.default_rng(seed)
    driver = Recorder(small_config(**CASES[case]), is_plain, bad_rows)
    driver.good_drafts = driver.config.num_draft  # all of them, now and then
    for _ in range(12):
        prompt = rng.integers(0, VOCAB, rng.integers(1, 36)).tolist()
        request = driver.submit(prompt, max_tokens=int(rng.integers(1, 30)), min_tokens=int(rng.integers(0, 9)))
        if rng.random() < 0.2:
            driver.step()
            driver.core.abort([request.uid])
        for _ in range(int(rng.integers(0, 4))):
            driver.step()
    driver.run(check=True)
    return driver


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_quick_commit_gives_the_events_of_the_plain_one(case, seed):
    quick, plain = (run(case, seed, is_plain) for is_plain in (False, True))
    assert quick.batches == plain.batches
    assert quick.core.stats() == plain.core.stats()


@pytest.mark.parametrize("case", ["pipelined", "pipelined_drafts"])
def test_quick_commit_leaves_rows_that_failed_to_the_plain_one(case):
    quick, plain = (run(case, 5, is_plain, bad_rows=(9, 14, 23)) for is_plain in (False, True))
    assert quick.batches == plain.batches
    assert any(int(FinishReason.ENGINE) in batch[COLUMNS.index("finish_reason")] for batch in quick.batches)


def proposed(sampled, drafts, rows=None):
    """A row of one request: nothing of ``rows`` was accepted."""
    return SamplerOutput(
        sampled_ids=np.array([sampled], np.int32),
        sampled_logprob=np.zeros(1, np.float32),
        row_status=np.zeros(1, np.int8),
        draft_ids=np.array([drafts], np.int32),
        verified_ids=None if rows is None else np.full(rows, -1, np.int32),
        accepted=None if rows is None else np.zeros(1, np.int32),
    )


@pytest.mark.parametrize("k", range(1, 16))
def test_drafts_of_any_number_are_verified_as_proposed(k):
    with Core(small_config(num_draft=k, max_num_seqs=2)) as core:
        core.submit([1, 2, 3], max_tokens=40)
        rows = None  # the prompt's step verifies nothing
        for sampled in (5, 6, 7):
            drafts = [sampled + 1 + j for j in range(k)]
            step = core.schedule_local()
            core.pack(step.step_id)
            core.commit(step.step_id, proposed(sampled, drafts, rows))
            core.step_done(step.step_id)
            step = core.schedule_local()
            assert core.pack(step.step_id).input_ids.tolist() == [sampled, *drafts]
            core.commit(step.step_id, proposed(50, [0] * k, k + 1))
            core.step_done(step.step_id)
            rows = k + 1


def test_commit_sets_off_no_floating_point_exception():
    """The program around may have enabled traps of invalid operations. 240 .. 255: tokens of the highest stop bit."""
    libm, invalid = ctypes.CDLL(ctypes.util.find_library("m")), 1  # FE_INVALID of x86 and of Arm
    with Core(small_config(num_draft=3, max_num_seqs=2, vocab_size=300)) as core:
        core.submit([1, 2, 3], max_tokens=40, stop_ids=[256])
        for sampled, rows in ((240, None), (247, 4), (255, 4)):
            step = core.schedule_local()
            core.pack(step.step_id)
            output = proposed(sampled, [sampled] * 3, rows)
            libm.feclearexcept(invalid)
            core.commit(step.step_id, output)
            assert libm.fetestexcept(invalid) == 0
            core.step_done(step.step_id)
