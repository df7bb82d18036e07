"""Cache layout and bytes: sizes of the released model, canaries, strides, scalar store and load."""

import cpu_scalar
import pytest
import torch

from deepinfer_core import caches as layouts
from deepinfer_core.errors import CapacityError, ShapeContractError, UnsupportedFormat
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cpu.caches import CacheView
from deepinfer_cpu.formats import FORMATS
from deepinfer_cpu.ops import cache

OWNERS = ((2, 2), (8, 2), (14, 2), (20, 1))
QUANTISED = {
    "v41": ("e4m3", 32, "ue8m0"),
    "v41_fp4": ("e2m1", 16, "e4m3"),
    "index_fp4": ("e2m1", 32, "ue8m0"),
    "index_mxfp8": ("e4m3", 32, "ue8m0"),
}


def released() -> list[CacheSpec]:
    return [
        CacheSpec("main", "main", [CacheLayer(n, 128 // r, "v41_fp4", 512, r) for n, r in OWNERS]),
        CacheSpec("index", "index", [CacheLayer(n, 128 // r, "index_fp4", 128, r) for n, r in OWNERS]),
        CacheSpec("swa", "swa", [CacheLayer(n, 134, "v41", 512) for n in range(43)]),
        CacheSpec("state", "state", [CacheLayer(n, 7, "f32", 512, r) for n, r in OWNERS if r > 1]),
    ]


def small(main: str = "v41_fp4", index: str = "index_fp4") -> list[CacheSpec]:
    return [
        CacheSpec("main", "main", [CacheLayer(2, 4, main, 64, 2), CacheLayer(4, 8, main, 64)]),
        CacheSpec("index", "index", [CacheLayer(2, 4, index, 32, 2), CacheLayer(4, 8, index, 32)]),
        CacheSpec("swa", "swa", [CacheLayer(n, 5, "v41", 64) for n in range(3)]),
        CacheSpec("state", "state", [CacheLayer(2, 3, "f32", 64, 2)]),
    ]


def test_released_page_is_890_bytes_a_token(backend):
    pages = sum(layouts.page_bytes(s, layer) for s in released()[:2] for layer in s.layers)
    assert pages == 113_920 == 890 * 128
    assert backend.unit_bytes(released(), "main") == backend.unit_bytes(released(), "index") == 114_048


def test_released_slots_have_the_sizes_of_the_table(backend):
    assert backend.unit_bytes(released(), "swa") == 3_042_336
    assert backend.unit_bytes(released(), "state") == 86_016


@pytest.mark.parametrize(
    ("name", "width", "size"), [("v41", 512, 528), ("v41_fp4", 512, 288), ("index_fp4", 128, 68),
                                ("index_mxfp8", 128, 132), ("index_fp8", 128, 132), ("bf16", 64, 128)],
)  # fmt: skip
def test_entry_bytes_of_a_format_match_the_table(name, width, size):
    assert FORMATS[name].entry_bytes(width) == size


def test_pages_of_a_block_follow_each_other_index_first():
    layout = layouts.layout_of(released(), "block")
    order = sorted(layout.places.items(), key=lambda item: item[1].offset)
    assert [key for key, _ in order] == [(n, layer) for layer, _ in OWNERS for n in ("index", "main")]
    assert [place.offset for _, place in order][:4] == [0, 4352, 4352 + 18432, 2 * 4352 + 18432]


def test_views_have_the_documented_shapes(backend):
    c = backend.alloc_caches(small(), {"main": 3, "index": 3, "swa": 2, "state": 2})
    assert c.view("main", 4).tensor.shape == (3, 8, 36)
    assert c.view("index", 4).tensor.shape == (3, 8 * 17)
    assert c.view("swa", 2).tensor.shape == (2, 5, 66)
    assert c.view("state", 2).tensor.shape == (2, 3, 2, 64)
    assert c.view("state", 2).tensor.dtype == torch.float32
    assert c.view("main", 4) is c.view("main", 4)
    assert c.nbytes == 3 * backend.unit_bytes(small(), "main") + 2 * (
        backend.unit_bytes(small(), "swa") + backend.unit_bytes(small(), "state")
    )


@pytest.mark.parametrize(
    ("main", "index"), [("v41_fp4", "index_fp4"), ("v41", "index_mxfp8"), ("bf16", "index_fp8"), ("f32", "f32")]
)
def test_writing_one_layer_leaves_every_other_byte_alone(backend, main, index):
    c = backend.alloc_caches(small(main, index), {"main": 3, "index": 3, "swa": 2, "state": 1})
    for arena in c._arenas.values():
        arena.fill_(0xA5)
    for name, layer, page in (("main", 2, 4), ("main", 4, 8), ("index", 2, 4), ("index", 4, 8)):
        before = c._arenas["block"].clone()
        view = c.view(name, layer)
        cache.store(torch.randn(page, view.width), view, torch.arange(page, 2 * page, dtype=torch.int32))
        changed = (c._arenas["block"] != before).nonzero().flatten()
        stride = c._layouts["block"].stride
        begin = stride + c._layouts["block"].places[name, layer].offset
        assert changed.numel() > 0
        assert changed.min() >= begin
        assert changed.max() < begin + page * view.layout.entry_bytes(view.width)
    for other in ("swa", "state"):
        assert (c._arenas[other] == 0xA5).all()


def foreign_view(
    name: str, width: int, units: int, page: int, padding: int, offset: int
) -> tuple[CacheView, torch.Tensor]:
    """A view into memory that this backend did not lay out, with its whole memory."""
    layout = FORMATS[name]
    size = layout.entry_bytes(width)
    stride = page * size + padding
    memory = torch.full((offset + units * stride,), 0x5A, dtype=torch.uint8)
    shape, strides = (
        ((units, page * size), (stride, 1)) if layout.split_page else ((units, page, size), (stride, size, 1))
    )
    return CacheView(memory.as_strided(shape, strides, offset), name, page, stride, width), memory


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize(("padding", "offset"), [(0, 0), (32, 64), (96, 32), (4 * 1152, 0)])
def test_store_then_load_at_any_stride_and_offset_gives_the_values(name, padding, offset):
    view, _ = foreign_view(name, 64, 4, 8, padding, offset)
    kv = torch.randn(6, 64).bfloat16()
    slots = torch.tensor([9, -1, 31, 0, 17, 8], dtype=torch.int32)
    stored = cache.store(kv, view, slots, want_values=True)
    expected = torch.cat([stored[[5, 0]], torch.zeros(1, 64), stored[[2]]])
    segments = torch.tensor([[1, 0, 2, 0], [-1, 0, 1, 2], [3, 7, 8, 3]], dtype=torch.int32)
    got = cache.load_segments(view, segments, 4, dtype=torch.float32)
    assert torch.equal(got if isinstance(got, torch.Tensor) else got.values, expected)


@pytest.mark.parametrize("name", sorted(QUANTISED))
def test_stored_bytes_equal_the_scalar_version_and_canaries_stay(name):
    fmt, group, sf = QUANTISED[name]
    view, memory = foreign_view(name, 64, 3, 4, 32, 96)
    kv = torch.randn(2, 64).bfloat16()
    before = memory.clone()
    cache.store(kv, view, torch.tensor([6, 1], dtype=torch.int32))
    expected = before.clone()
    data_bytes, scale_bytes = view.layout.data_bytes(64), view.layout.scale_bytes(64)
    for row, (unit, entry) in zip(kv.float().tolist(), ((1, 2), (0, 1)), strict=True):
        parts = [cpu_scalar.quantise(row[g : g + group], fmt, sf) for g in range(0, 64, group)]
        codes = [c for _, _, cs in parts for c in cs]
        data = codes if fmt == "e4m3" else cpu_scalar.pack_nibbles(codes)
        scales = [byte for byte, _, _ in parts]
        base = 96 + unit * view.block_stride
        if view.layout.split_page:
            at, scale_at = base + entry * data_bytes, base + 4 * data_bytes + entry * scale_bytes
        else:
            at = base + entry * (data_bytes + scale_bytes)
            scale_at = at + data_bytes
        expected[at : at + data_bytes] = torch.tensor(data, dtype=torch.uint8)
        expected[scale_at : scale_at + scale_bytes] = torch.tensor(scales, dtype=torch.uint8)
    assert torch.equal(memory, expected)


def test_store_of_skipped_slots_only_writes_nothing():
    view, memory = foreign_view("v41", 64, 2, 4, 0, 0)
    assert cache.store(torch.randn(3, 64), view, torch.full((3,), -1, dtype=torch.int32)) is None
    assert (memory == 0x5A).all()


def test_store_of_no_rows_writes_nothing():
    view, memory = foreign_view("index_fp4", 64, 2, 4, 0, 0)
    cache.store(torch.randn(0, 64), view, torch.zeros(0, dtype=torch.int32))
    assert (memory == 0x5A).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("slots", [[], [-1, -1]])
def test_store_of_nothing_gives_the_values_of_its_rows_on_request(name, slots):
    view, memory = foreign_view(name, 64, 2, 8, 32, 0)
    before = memory.clone()
    kv = torch.randn(len(slots), 64)
    values = cache.store(kv, view, torch.tensor(slots, dtype=torch.int32), want_values=True)
    assert values.shape == (len(slots), 64)
    assert torch.equal(memory, before)


def test_store_of_fp32_in_format_f32_is_exact():
    view, _ = foreign_view("f32", 64, 2, 4, 0, 0)
    kv = torch.randn(2, 64)
    cache.store(kv, view, torch.tensor([3, 4], dtype=torch.int32))
    assert torch.equal(cache.gather(view, torch.tensor([3, 4])), kv)


def test_store_of_a_wrong_width_is_refused():
    view, _ = foreign_view("v41", 64, 2, 4, 0, 0)
    with pytest.raises(ShapeContractError, match=r"cache\.store: argument 'kv' must be \[2, 64\], got \[2, 32\]"):
        cache.store(torch.zeros(2, 32), view, torch.zeros(2, dtype=torch.int32))


def test_load_of_index_format_keeps_the_stored_bytes():
    view, _ = foreign_view("index_fp4", 32, 2, 4, 0, 0)
    kv = torch.randn(3, 32).bfloat16()
    cache.store(kv, view, torch.tensor([4, 5, 6], dtype=torch.int32))
    q = cache.load_segments(view, torch.tensor([[1, 0, 3, 0]], dtype=torch.int32), 3)
    data, scale = cache.read(view, torch.tensor([4, 5, 6]))
    assert torch.equal(q.data, data)
    assert torch.equal(q.sf, scale)


def test_zero_clears_main_and_index_of_one_block_only(backend):
    c = backend.alloc_caches(small(), {"main": 3, "index": 3, "swa": 2, "state": 2})
    for arena in c._arenas.values():
        arena.fill_(7)
    c.zero("main", [1])
    assert (c.view("main", 4).tensor[1] == 0).all()
    assert (c.view("index", 2).tensor[1] == 0).all()
    assert (c.view("main", 4).tensor[[0, 2]] == 7).all()
    assert (c.view("swa", 0).tensor == 7).all()


def test_clone_copies_a_slot_in_order(backend):
    c = backend.alloc_caches(small(), {"main": 2, "index": 2, "swa": 4, "state": 4})
    c.view("swa", 1).tensor[1] = 3
    c.clone("swa", [(1, 2), (2, 3)])
    assert (c.view("swa", 1).tensor[3] == 3).all()
    assert (c.view("swa", 1).tensor[0] == 0).all()


@pytest.mark.parametrize(
    ("pool", "names"),
    [("main", ("main", "index")), ("index", ("main", "index")), ("swa", ("swa",)), ("state", ("state",))],
)
def test_clone_copies_a_unit_byte_for_byte_and_nothing_else(backend, pool, names):
    """A block is cloned with its index keys, whichever of the two pools names it."""
    c = backend.alloc_caches(small(), dict.fromkeys(("main", "index", "swa", "state"), 5))
    for arena in c._arenas.values():
        arena.copy_(torch.randint(0, 256, arena.shape, dtype=torch.uint8))
    before = {name: arena.clone() for name, arena in c._arenas.items()}
    c.clone(pool, [(3, 1), (4, 2)])
    for spec in small():
        for layer in spec.layers:
            view = c.view(spec.name, layer.layer)
            same = [torch.equal(view.tensor[src].view(torch.uint8), view.tensor[dst].view(torch.uint8))
                    for src, dst in ((3, 1), (4, 2))]  # fmt: skip
            assert same == [spec.name in names] * 2
    for name, arena in c._arenas.items():
        units = [u for u in range(5) if name != layouts.ARENA_OF_POOL[pool] or u not in (1, 2)]
        assert torch.equal(arena.view(5, -1)[units], before[name].view(5, -1)[units])
    unit = c._layouts[layouts.ARENA_OF_POOL[pool]].stride
    arena = c._arenas[layouts.ARENA_OF_POOL[pool]]
    assert torch.equal(arena[unit : 3 * unit], before[layouts.ARENA_OF_POOL[pool]][3 * unit :])


def test_caches_satisfy_the_protocol(backend):
    from deepinfer_core.interfaces import Caches

    assert isinstance(backend.alloc_caches(small(), {"main": 1, "index": 1, "swa": 1, "state": 1}), Caches)


def test_view_of_an_unknown_cache_lists_the_known(backend):
    c = backend.alloc_caches(small(), {"main": 1, "index": 1, "swa": 1, "state": 1})
    with pytest.raises(ShapeContractError, match=r"cache\.view.*'main', 2"):
        c.view("main", 3)


def test_unknown_format_names_the_offered_ones(backend):
    specs = [CacheSpec("main", "main", [CacheLayer(0, 4, "v32", 64)])]
    with pytest.raises(UnsupportedFormat, match="'v32'") as caught:
        backend.alloc_caches(specs, {"main": 1})
    assert "v41_fp4" in caught.value.reason


def test_more_memory_than_exists_is_a_capacity_error(backend):
    with pytest.raises(CapacityError, match="bytes for the caches"):
        backend.alloc_caches(released(), {"main": 1 << 40, "index": 1 << 40, "swa": 1, "state": 1})


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_store_of_a_broken_row_leaves_the_others_whole(name, value):
    view, _ = foreign_view(name, 64, 2, 4, 0, 0)
    kv = torch.randn(3, 64).bfloat16()
    expected = cache.store(kv, view, torch.tensor([0, 1, 2], dtype=torch.int32), want_values=True).clone()
    kv[1, 7] = value
    cache.store(kv, view, torch.tensor([0, 1, 2], dtype=torch.int32))
    assert torch.equal(cache.gather(view, torch.tensor([0, 2])), expected[[0, 2]].float())
