"""What `TurnWriter` shows of a sampler's arrays: always those of the newest output, whichever were shown before."""

import sys

import numpy as np
import pytest

from deepinfer_contracts import SamplerOutput
from deepinfer_native.errors import ContractError
from deepinfer_native.library import ffi
from deepinfer_native.sampler_output import TurnWriter


def output(n, **fields):
    arrays = {
        "sampled_ids": np.arange(n, dtype=np.int32),
        "sampled_logprob": np.zeros(n, np.float32),
        "row_status": np.zeros(n, np.int8),
    }
    return SamplerOutput(**{**arrays, **fields})


def shown(struct, name):
    view = getattr(struct, name)
    return int(ffi.cast("uintptr_t", view.data)), [view.shape[d] for d in range(view.ndim)], view.stride[0]


def expected(array):
    return array.ctypes.data, list(array.shape), int(np.prod(array.shape[1:]))


@pytest.mark.parametrize("order", ["aabb", "ababab", "abcabc", "aCabCab", "CCaaCbbaC", "aCbCaCb"])
def test_arrays_of_the_newest_output_are_shown(order):
    known = {name: output(5 if name.isupper() else 3, draft_ids=np.zeros((3, 2), np.int32)) for name in "abcC"}
    writer = TurnWriter()
    for name in order:
        struct = writer.fill(known[name])
        for field in ("sampled_ids", "sampled_logprob", "row_status", "draft_ids"):
            assert shown(struct, field) == expected(getattr(known[name], field)), (name, field)


def test_new_arrays_at_every_step_are_shown():
    writer = TurnWriter()
    for n in (3, 3, 4, 2, 2, 3):
        out = output(n)
        assert shown(writer.fill(out), "sampled_ids") == expected(out.sampled_ids)


@pytest.mark.parametrize(
    "wrong",
    [..., object(), [1, 2, 3], np.zeros(3, np.complex64), np.zeros(6, np.int32)[::2]],
    ids=["ellipsis", "object", "list", "complex", "strided"],
)
def test_what_is_no_array_is_refused_and_the_next_output_is_shown(wrong):
    first, second, writer = output(3), output(3), TurnWriter()
    writer.fill(first)
    writer.fill(second)
    with pytest.raises(ContractError, match="sampled_ids"):
        writer.fill(output(3, sampled_ids=wrong))
    for out in (first, second, first):
        assert shown(writer.fill(out), "sampled_ids") == expected(out.sampled_ids)


def test_arrays_before_the_last_two_are_let_go():
    writer = TurnWriter()
    outputs = [output(3) for _ in range(6)]
    for out in outputs:
        writer.fill(out)
    del out
    assert [sys.getrefcount(o.sampled_ids) > 2 for o in outputs] == [False] * 4 + [True] * 2
