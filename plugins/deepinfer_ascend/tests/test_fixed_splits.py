"""Kernels of ours split no row by the batch: a row is one core's, and its sums are cut alike whatever stands beside it.

So their rows have the same bits alone and among others. The backend claims no batch invariance all the same, because
products are the libraries', whose splits may follow the number of rows.
"""

import shutil

import pytest
import torch
from emulated_backend import emulated, rows

from deepinfer_ascend.jit import serving
from deepinfer_core.conformance.bitwise import require_row_invariant

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not shutil.which("g++"), reason="lowered kernels are compiled by g++"),
]
COUNT = 131
"""Rows: more than two for each core."""


@pytest.fixture(scope="module")
def ascend(tmp_path_factory):
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(serving.VARIABLE, "1")
        patch.setenv("DEEPINFER_ASCEND_CACHE", str(tmp_path_factory.mktemp("kernels")))
        made = emulated()
        yield made
        made.close()


def norm(ascend):
    x, w = rows(COUNT, 512), torch.rand(512)
    return lambda chosen: ascend.norm.rms(x[chosen], w, eps=1e-6)[0]


def cast(ascend):
    x = rows(COUNT, 256)
    return lambda chosen: ascend.quant.cast_per_token(x[chosen]).data


def swiglu(ascend):
    x, weight = rows(COUNT, 256) * 4, torch.rand(COUNT)
    return lambda chosen: ascend.moe.swiglu(x[chosen], clamp=3.0, weight=weight[chosen])


@pytest.mark.parametrize("make", [norm, cast, swiglu])
def test_a_row_has_the_bits_that_it_has_alone(ascend, make):
    assert {op for op, who in ascend.plan.items() if who != "deepinfer-cpu"} >= {"norm.rms", "moe.swiglu"}
    require_row_invariant(make.__name__, make(ascend), COUNT, torch.Generator().manual_seed(5))


def test_the_backend_claims_no_batch_invariance(ascend):
    assert "batch_invariant" not in ascend.capabilities.features
    assert ascend.capabilities.determinism["batch_invariant"] is False
