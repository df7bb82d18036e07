"""Lowered kernels that write and read entries of caches: the bytes of the plain ops, and none beside them."""

import pytest
import torch
from executed import MARKS, cache_view, execute, flat_bytes, kernel_cache  # noqa: F401 (a fixture)

from deepinfer_ascend.jit import serving
from deepinfer_ascend.plain import plain_op

pytestmark = MARKS
SEGMENTS = torch.tensor([[1, 2, 7, 3], [-1, 0, 2, 0], [0, 0, 3, 10], [2, 5, 5, 8], [2, 7, 8, 2]], dtype=torch.int32)
"""A run inside a unit, one of no unit, one at its begin, an empty one, its last entry; rows 0, 1, 8, 9 are of none."""


def entries(width):
    """Twenty rows from subnormal to huge, zeros of both signs; a slot for each but one."""
    x = (torch.randn(20, width) * torch.logspace(-6, 4, 20).unsqueeze(1)).bfloat16()
    x[3], x[4, ::2] = 0.0, -0.0
    slots = torch.randperm(24)[:20].int()
    slots[5] = -1
    return x, slots


def given(view, unit=1):
    cache = flat_bytes(view) if unit == 1 else flat_bytes(view).view(torch.float32)
    return cache, {"page": 8, "stride": view.block_stride // unit, "size": cache.numel()}


@pytest.mark.slow  # the gate quantises rows in test_hosted.py, and has pages in the two tests below
@pytest.mark.parametrize(("format", "width"), [("v41_fp4", 64), ("v41", 64), ("index_fp4", 128), ("index_mxfp8", 128)])
def test_entries_are_stored_by_their_format_and_read(format, width):
    view = cache_view(format, width)
    x, slots = entries(width)
    cache, where = given(view)
    sizes, outputs = {"format": format, "width": width}, {"cache": cache, "kept": torch.empty(20, width)}
    arguments = {"x": x, "slots": slots, "rows": 20, **where}
    made = execute("store_entries", sizes | {"values": True}, outputs, begin=cache, **arguments)
    values = plain_op("cache.store")(x, view, slots, want_values=True)
    assert torch.equal(made["cache"], cache)
    assert torch.equal(made["kept"], values)
    y = torch.zeros(20, width, dtype=torch.bfloat16)
    read = {"cache": cache.clone(), "segments": SEGMENTS, "runs": 5, "total": 20, **where}
    found = execute("load_runs", sizes, {"y": y}, begin=y, **read)["y"]
    assert torch.equal(found, plain_op("cache.load_segments")(view, SEGMENTS, 20, out=torch.empty_like(y)))


def test_pages_of_index_keys_are_read_as_codes():
    view = cache_view("index_fp4", 128)
    cache, where = given(view)
    wanted = plain_op("cache.load_segments")(view, SEGMENTS, 20)
    outputs = {"codes": torch.zeros_like(wanted.data), "sf": torch.zeros_like(wanted.sf)}
    read = {"cache": cache.clone(), "segments": SEGMENTS, "runs": 5, "total": 20, **where}
    made = execute("load_codes", {"format": "index_fp4", "width": 128}, outputs, begin=outputs, **read)
    assert torch.equal(made["codes"], wanted.data)
    assert torch.equal(made["sf"], wanted.sf)


def test_plain_numbers_are_stored_and_read():
    view = cache_view("f32", 64)
    flat_bytes(view).zero_()
    x, slots = entries(64)
    cache, where = given(view, unit=4)
    sizes = {"width": 64, "dtype": "float32"}
    made = execute("store_numbers", sizes, {"cache": cache}, begin=cache, x=x, slots=slots, rows=20, **where)
    plain_op("cache.store")(x, view, slots)
    assert torch.equal(made["cache"].view(torch.uint8), flat_bytes(view))
    y = torch.zeros(20, 64, dtype=torch.bfloat16)
    read = {"cache": cache.clone(), "segments": SEGMENTS, "runs": 5, "total": 20, **where}
    found = execute("load_numbers", {"width": 64, "stored": "float32"}, {"y": y}, begin=y, **read)["y"]
    assert torch.equal(found, plain_op("cache.load_segments")(view, SEGMENTS, 20))


@pytest.mark.slow
@pytest.mark.parametrize("format", [pytest.param("v41_fp4", marks=pytest.mark.slow), "bf16"])
def test_the_ops_take_views_as_they_are(format):
    """As the engine calls them: a strided view, an index beside it, values asked for and not."""
    pytest.importorskip("tilelang", reason="deepinfer-ascend[kernels] is not installed")
    from emulated_backend import emulated

    made = emulated()
    served = serving.serve(made.ops)
    for want in (False, True):
        mine, plain = cache_view(format, 64), cache_view(format, 64)
        flat_bytes(plain).copy_(flat_bytes(mine))
        x, slots = entries(64)
        kept = served["cache.store"](x, mine, slots, want_values=want)
        wanted = plain_op("cache.store")(x, plain, slots, want_values=want)
        assert torch.equal(flat_bytes(mine), flat_bytes(plain))
        assert wanted is None if kept is None else torch.equal(kept.float(), wanted.float())
        loaded = served["cache.load_segments"](mine, SEGMENTS, 20)
        assert torch.equal(loaded, plain_op("cache.load_segments")(plain, SEGMENTS, 20))
    made.close()
