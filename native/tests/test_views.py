"""Records whose changed words alone were looked at show what a reader sees that looks at everything (``views.py``)."""

import numpy as np
import pytest
from native_driver import VOCAB, Driver, small_config

from deepinfer_contracts import InputMetadataV41, SamplerInputs, SchedulerOutputs
from deepinfer_native.library import ffi
from deepinfer_native.views import RecordReader

READERS = {
    "_steps": ("di_scheduler_outputs", SchedulerOutputs, "steps"),
    "_inputs": ("di_input_metadata_v41", InputMetadataV41, "inputs"),
    "_sampler": ("di_sampler_inputs", SamplerInputs, "sampler"),
}
CASES = {
    "plain": {},
    "pipelined": {"depth": 2},
    "drafts": {"depth": 2, "num_draft": 3},
    "small_pool": {"depth": 2, "num_blocks": 20},
    "prefix_cache": {"prefix_cache": True, "num_blocks": 40},
}


def same(a, b):
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b)
    return a is b or a == b


class Looker(Driver):
    """Compares every record with one that was read from nothing."""

    renewed = 0

    def __init__(self, config):
        super().__init__(config)
        for name in READERS:
            self.watch(name)

    def watch(self, name):
        struct, make, kind = READERS[name]
        reader, core = getattr(self.core, name), self.core
        read, renew = reader.read, reader._renew

        def compared(owner):
            record = read(owner)
            fresh = RecordReader(struct, make, kind, core.config.ratios, ffi.cast("di_layouts *", layouts_of(reader)))
            fresh._buffer, fresh.struct = reader._buffer, reader.struct
            whole = fresh.read(owner)
            wrong = [f for f in make.FIELDS if not same(getattr(record, f), getattr(whole, f))]
            assert wrong == [], (name, wrong)
            return record

        def counted(*arguments):
            done = renew(*arguments)
            self.renewed += done
            return done

        reader.read, reader._renew = compared, counted


def layouts_of(reader):
    return ffi.addressof(ffi.from_buffer("di_layouts *", reader._layouts)[0])


@pytest.mark.parametrize("case", CASES)
def test_records_show_what_a_fresh_reader_sees(case):
    driver = Looker(small_config(**CASES[case]))
    rng = np.random.default_rng(11)
    for i in range(24):
        prompt = rng.integers(0, VOCAB, int(rng.integers(1, 40))).tolist()
        driver.submit(prompt, max_tokens=int(rng.integers(1, 30)), stop=(5, 6) if i % 2 else ())
        for _ in range(int(rng.integers(0, 6))):
            driver.step()
    driver.run(check=True)
    driver.require_expected()
    assert driver.renewed > 20
