"""Lowered kernels executed in both orders of threads, and caches to execute them on."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from emulated_backend import emulated

from deepinfer_ascend.chip import UB_BYTES_SIMT, VECTOR_CORES
from deepinfer_ascend.jit import hosted, kept
from deepinfer_ascend.jit.lowering import lowered
from deepinfer_ascend.jit.structure import pipes, structure, too_large, unknown
from deepinfer_ascend.jit.survey import label
from deepinfer_core.types import CacheLayer, CacheSpec

MARKS = [
    pytest.mark.emulated,
    pytest.mark.timeout(600),  # lowering takes seconds, and minutes on a crowded machine
    pytest.mark.skipif(not shutil.which("g++"), reason="lowered kernels are compiled by g++"),
]
MANY = VECTOR_CORES + 6
"""Rows, so that some cores have two and others one."""


GOLDEN = json.loads((Path(__file__).parent / "golden_kernels.json").read_text())


def look_at(name, sizes):
    """The kernel: it calls what is known, fits into a core, waits for what is notified, and is what it was."""
    kernel = lowered(name, **sizes)
    assert unknown(kernel) == []
    assert too_large(kernel) == []
    assert all(notified and waited for notified, waited in pipes(kernel).values())
    assert structure(kernel) == GOLDEN.get(label(name, sizes), structure(kernel))
    assert max(structure(kernel)["threads"], default=0) <= 1024
    return kernel


@pytest.fixture(scope="session", autouse=True)
def kernel_cache():
    """A folder of the clone, for all runs and their processes: what lies there is named by what it is made from, and
    lowering it is most of what these tests take."""
    with pytest.MonkeyPatch.context() as patch:
        if kept.VARIABLE not in os.environ:
            patch.setenv(kept.VARIABLE, str(Path(__file__).parents[3] / "build" / "ascend-kernels"))
        yield


def execute(name, sizes, outputs, cores=VECTOR_CORES, begin=None, **arguments):
    """Both orders of threads give the same bytes, and nothing behind the outputs is touched. Returns the outputs.

    ``begin``: what stands in the outputs before, or in the first one.
    """
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    kernel = look_at(name, sizes)
    if isinstance(begin, torch.Tensor):
        begin = {next(iter(outputs)): begin}
    found = []
    for backwards in (False, True):
        held = {key: torch.full((t.numel() + 64,), 77, dtype=t.dtype) for key, t in outputs.items()}
        views = {key: held[key][: t.numel()].view(t.shape) for key, t in outputs.items()}
        for key, value in (begin or {}).items():
            views[key].copy_(value)
        used = hosted.run(kernel, cores, backwards=backwards, **arguments, **views)
        assert used.get("UB", 0) <= UB_BYTES_SIMT
        for key, t in outputs.items():
            assert (held[key][t.numel() :] == 77).all(), f"{name} wrote behind {key}"
        found.append(views)
    for key in outputs:
        assert torch.equal(found[0][key].view(torch.uint8), found[1][key].view(torch.uint8)), f"{name} has a race"
    return found[0]


def cache_view(format, width):
    """The second of two layers: three units of eight entries, other bytes between them, all of them noise."""
    pool = "index" if format.startswith("index") else "main"
    made = emulated()
    layers = [CacheLayer(0, 8, format, width), CacheLayer(1, 8, format, width)]
    view = made.cache.alloc([CacheSpec(pool, pool, layers)], {"main": 3, "index": 3}).view(pool, 1)
    made.close()
    flat_bytes(view).random_(0, 100)
    return view


def flat_bytes(view):
    """All bytes from the first entry of a view to its last."""
    return view.tensor.as_strided(((len(view.tensor) - 1) * view.block_stride + view.tensor[0].numel(),), (1,))
