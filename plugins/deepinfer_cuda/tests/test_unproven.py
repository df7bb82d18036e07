"""Kernels that are not in use: named by ops that exist, left alone by the wrappers, called by their own tests."""

import pytest

from deepinfer_contracts import OPS
from deepinfer_cuda import unproven
from deepinfer_cuda.backend import op_table
from deepinfer_cuda.plain import plain_op


def test_the_list_names_ops_that_have_a_wrapper_and_a_plain_op():
    named = {op.split(":")[0] for op in unproven.OPS}
    assert named <= set(OPS)
    assert named <= set(op_table())
    for op in named:
        assert callable(plain_op(op))


def test_all_serve_within_and_none_more_behind(monkeypatch):
    monkeypatch.setattr(unproven, "OPS", {"norm.rms", "meta.feed_tokens"})
    before = set(unproven.OPS)
    with unproven.all_serve():
        assert all(unproven.serves(op) for op in before)
    assert before == unproven.OPS
    with pytest.raises(ZeroDivisionError), unproven.all_serve():
        1 / 0  # noqa: B018
    assert before == unproven.OPS
    assert not any(unproven.serves(op) for op in before)
    assert unproven.serves("moe.gate")
