"""``cache.*``: memory of all pools, its views, and entries in and out, byte for byte (``spec/kernels.md`` 1.3, 2.1)."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance.arena import INDEX, LAYERS, MAIN, STATE, SWA, UNITS, Arena, random_entries, specs
from deepinfer_core.conformance.backend.offered import formats, partner, require_format
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model_sizes import BOTH, RELEASED, SMALL, ModelSizes
from deepinfer_core.conformance.reference import cache as reference

KV = ("v41", "v41_fp4", "bf16", "f32")
INDEX_KEYS = ("index_fp4", "index_mxfp8", "index_fp8", "bf16", "f32")


def claimed(*formats: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.needs(f"kv:{name}"), id=name) for name in formats]


def caches_of(backend: Any, sizes: ModelSizes, *, kv: str | None = None, index: str | None = None) -> Any:
    kv, index = kv or partner(backend, "kv"), index or partner(backend, "index")
    require_format(backend, "kv", kv)
    require_format(backend, "index", index)
    made = specs(kv, index, width=sizes.width, index_width=sizes.index_width, block=sizes.block, ring=sizes.ring,
                 state_ring=sizes.state_ring)  # fmt: skip
    return backend.ops["cache.alloc"](made, dict.fromkeys(("main", "index", "swa", "state"), UNITS))


def slots_of(kind: str, arena: Arena, generator: torch.Generator) -> list[int]:
    page, last = int(arena.view.page), arena.slots - 1
    mixed = torch.randperm(arena.slots, generator=generator).tolist()
    lists: dict[str, list[int]] = {
        "none": [],
        "one": [page + 1],
        "edges": [0, page - 1, page, 2 * page - 1, last],
        "skipped": [-1, 3, -1, -1, last, -1],
        "all skipped": [-1] * 4,
        "every": mixed,
        "a page and a part": [2 * page + i for i in range(page)] + [3 * page + i for i in range(page // 3)],
        "ragged": mixed[: page // 2 + 3],
    }
    return lists[kind]


def store_and_compare(
    backend: Any, view: Any, width: int, slots: list[int], kv: Tensor, device: Any, **facts: object
) -> None:
    arena = Arena.of(view, width)
    result = backend.ops["cache.store"](kv.to(device), view, torch.tensor(slots, dtype=torch.int32, device=device))
    require(result is None, "a store without want_values gives nothing", op="cache.store", got=type(result).__name__)
    arena.write(slots, kv)
    arena.expect("cache.store", **facts)


@pytest.mark.op("cache.store")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("fmt", claimed(*KV))
def test_store_writes_entries_and_nothing_else(
    backend: Any, device: Any, generator: Any, fmt: str, sizes: ModelSizes
) -> None:
    caches = caches_of(backend, sizes, kv=fmt)
    for layer in LAYERS:
        view = backend.ops["cache.view"](caches, MAIN, layer)
        arena = Arena.of(view, sizes.width, fill=torch.randint(0, 256, (997,), generator=generator, dtype=torch.uint8))
        for kind in ("none", "one", "edges", "skipped", "all skipped", "a page and a part", "ragged", "every"):
            slots = slots_of(kind, arena, generator)
            kv = random_entries(len(slots), arena.layout, sizes.width, generator)
            store_and_compare(backend, view, sizes.width, slots, kv, device, case=f"{kind}, layer {layer}")


@pytest.mark.op("cache.store")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("fmt", claimed(*INDEX_KEYS))
def test_store_of_index_keys_writes_entries_and_nothing_else(
    backend: Any, device: Any, generator: Any, fmt: str, sizes: ModelSizes
) -> None:
    caches = caches_of(backend, sizes, index=fmt)
    for layer in LAYERS:
        view = backend.ops["cache.view"](caches, INDEX, layer)
        arena = Arena.of(
            view, sizes.index_width, fill=torch.randint(0, 256, (997,), generator=generator, dtype=torch.uint8)
        )
        for kind in ("none", "one", "edges", "skipped", "all skipped", "a page and a part", "ragged", "every"):
            slots = slots_of(kind, arena, generator)
            kv = random_entries(len(slots), arena.layout, sizes.index_width, generator)
            store_and_compare(backend, view, sizes.index_width, slots, kv, device, case=f"{kind}, layer {layer}")


@pytest.mark.op("cache.store")
@pytest.mark.level("smoke")
def test_store_of_a_window_ring_wraps_and_skips(backend: Any, device: Any, generator: Any) -> None:
    caches = caches_of(backend, SMALL)
    view = backend.ops["cache.view"](caches, SWA, LAYERS[1])
    arena = Arena.poisoned(view, SMALL.width)
    ring = SMALL.ring
    slots = [ring + p % ring for p in range(ring - 2, ring + 3)] + [-1, 2]
    kv = random_entries(len(slots), arena.layout, SMALL.width, generator)
    store_and_compare(backend, view, SMALL.width, slots, kv, device, case="ring of slot 1")


@pytest.mark.op("cache.store")
@pytest.mark.parametrize("fmt", claimed(*KV))
def test_store_of_rows_cut_from_a_wider_tensor_reads_the_right_ones(
    backend: Any, device: Any, generator: Any, fmt: str
) -> None:
    caches = caches_of(backend, SMALL, kv=fmt)
    view = backend.ops["cache.view"](caches, MAIN, LAYERS[0])
    arena = Arena.of(view, SMALL.width)
    wide = random_entries(9, arena.layout, SMALL.width * 3, generator).to(device)
    rows = wide[2:7, SMALL.width : 2 * SMALL.width]
    slots = [7, 0, -1, 64, 9]
    backend.ops["cache.store"](rows, view, torch.tensor(slots, dtype=torch.int32, device=device))
    arena.write(slots, rows.cpu())
    arena.expect("cache.store", case="rows with a stride")


@pytest.mark.op("cache.store")
@pytest.mark.parametrize("fmt", claimed(*KV, "index_fp4", "index_mxfp8", "index_fp8"))
def test_store_returns_the_values_it_stored_on_request(
    backend: Any, device: Any, generator: Any, tolerance: Any, fmt: str
) -> None:
    index = fmt.startswith("index")
    caches = caches_of(backend, SMALL, **{"index" if index else "kv": fmt})
    view = backend.ops["cache.view"](caches, INDEX if index else MAIN, LAYERS[0])
    width = SMALL.index_width if index else SMALL.width
    arena = Arena.of(view, width)
    for slots in ([], [5], [3, -1, 70, 2], [-1, -1]):
        kv = random_entries(len(slots), arena.layout, width, generator)
        values = backend.ops["cache.store"](
            kv.to(device), view, torch.tensor(slots, dtype=torch.int32, device=device), want_values=True
        )
        arena.write(slots, kv)
        arena.expect("cache.store", case=f"slots {slots}")
        expected = reference.decode(*reference.encode(kv, arena.layout), arena.layout, width)
        tolerance("cache.store")(values.to(torch.float64), expected.float().double(), case=f"values of slots {slots}")


@pytest.mark.op("cache.store", "cache.load_segments")
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("kind", "fmt"), [
    pytest.param("kv", "v41_fp4", marks=pytest.mark.needs("feature:fp4_cache")),
    pytest.param("index", "index_fp8", marks=pytest.mark.needs("feature:fp8_index_f32sf")),
])  # fmt: skip
def test_the_format_of_a_claimed_feature_is_there(
    backend: Any, device: Any, generator: Any, kind: str, fmt: str
) -> None:
    require(fmt in formats(backend, kind), "a feature is claimed whose format is not offered", got=fmt)
    caches = caches_of(backend, SMALL, **{kind: fmt})
    view = backend.ops["cache.view"](caches, MAIN if kind == "kv" else INDEX, LAYERS[1])
    width = SMALL.width if kind == "kv" else SMALL.index_width
    kv = random_entries(3, reference.LAYOUTS[fmt], width, generator)
    store_and_compare(backend, view, width, [5, 0, 130], kv, device, case=fmt)


@pytest.mark.op("cache.store")
@pytest.mark.needs("kv:v41")
def test_store_of_a_row_with_nan_stays_in_its_entry(backend: Any, device: Any, generator: Any) -> None:
    caches = caches_of(backend, SMALL, kv="v41")
    view = backend.ops["cache.view"](caches, MAIN, LAYERS[0])
    arena = Arena.of(view, SMALL.width)
    kv = random_entries(5, arena.layout, SMALL.width, generator)
    sick = kv.clone()
    sick[2, 40] = math.nan
    slots = torch.tensor([4, 3, 2, 1, 0], dtype=torch.int32, device=device)
    backend.ops["cache.store"](sick.to(device), view, slots)
    arena.write([4, 3, 2, 1, 0], kv)
    now = Arena.of(view, SMALL.width)
    require(
        bool(now.values([2])[0, 32:64].isnan().any()), "a NaN is stored as a number", op="cache.store", case="row 2"
    )
    for part in arena.addresses([2]):
        now.raw[part] = arena.raw[part]
    wrong = (now.raw != arena.raw).nonzero()
    require(not len(wrong), "a NaN changes another entry", op="cache.store", got=f"{len(wrong)} other bytes")


def segments_of(page: int, units: int) -> tuple[list[list[int]], int]:
    """Whole pages, parts of them, zero fill, an empty run, runs that are not in order, and rows that nobody names."""
    runs = [
        [units - 1, 0, page, 3],
        [1, page - 3, page, page + 3],
        [-1, 0, 5, page + 6],
        [2, 4, 4, page + 11],
        [0, 2, 9, page + 12],
        [units - 1, page - 1, page, 0],
    ]
    return runs, page + 12 + 7 + 2


def loaded(arena: Arena, runs: list[list[int]], total: int, dtype: torch.dtype) -> Tensor:
    out = torch.zeros(total, arena.width, dtype=torch.float64)
    for unit, begin, end, to in runs:
        if unit >= 0 and end > begin:
            out[to : to + end - begin] = arena.values([unit * int(arena.view.page) + e for e in range(begin, end)])
    return out.to(dtype).double()


@pytest.mark.op("cache.load_segments")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("fmt", claimed(*KV))
def test_load_gathers_runs_and_fills_the_rest_with_zeros(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, fmt: str, sizes: ModelSizes
) -> None:
    caches = caches_of(backend, sizes, kv=fmt)
    for layer in LAYERS:
        view = backend.ops["cache.view"](caches, MAIN, layer)
        arena = Arena.poisoned(view, sizes.width)
        runs, total = segments_of(int(view.page), UNITS)
        used = sorted({u * int(view.page) + e for u, b, e_, _ in runs if u >= 0 for e in range(b, e_)})
        arena.write(used, random_entries(len(used), arena.layout, sizes.width, generator))
        arena.upload()
        segments = torch.tensor(runs, dtype=torch.int32, device=device)
        for dtype in (torch.bfloat16, torch.float32):
            got = repeat("cache.load_segments", view, segments, total, dtype=dtype)
            tolerance("cache.load_segments")(got, loaded(arena, runs, total, dtype), case=f"layer {layer}, {dtype}")
        arena.expect("cache.load_segments", case="a load writes nothing")


@pytest.mark.op("cache.load_segments")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("fmt", claimed(*INDEX_KEYS))
def test_load_of_index_keys_gives_the_values_stored(
    backend: Any, device: Any, generator: Any, tolerance: Any, fmt: str, sizes: ModelSizes
) -> None:
    caches = caches_of(backend, sizes, index=fmt)
    for layer in LAYERS:
        view = backend.ops["cache.view"](caches, INDEX, layer)
        arena = Arena.poisoned(view, sizes.index_width)
        runs, total = segments_of(int(view.page), UNITS)
        used = sorted({u * int(view.page) + e for u, b, e_, _ in runs if u >= 0 for e in range(b, e_)})
        arena.write(used, random_entries(len(used), arena.layout, sizes.index_width, generator))
        arena.upload()
        found = backend.ops["cache.load_segments"](
            view, torch.tensor(runs, dtype=torch.int32, device=device), total, dtype=torch.float32
        )
        if not isinstance(found, Tensor):
            found = backend.ops["quant.dequantize"](found, dtype=torch.float32)
        tolerance("cache.load_segments")(found, loaded(arena, runs, total, torch.float32), case=f"layer {layer}")
        arena.expect("cache.load_segments", case="a load writes nothing")


@pytest.mark.op("cache.load_segments")
@pytest.mark.level("smoke")
def test_load_of_nothing_gives_zeros(backend: Any, device: Any, tolerance: Any, guarded: Any) -> None:
    caches = caches_of(backend, SMALL)
    view = backend.ops["cache.view"](caches, SWA, LAYERS[0])
    Arena.poisoned(view, SMALL.width)
    none = torch.zeros(0, 4, dtype=torch.int32, device=device)
    check = tolerance("cache.load_segments")
    for total in (0, 3):
        check(
            backend.ops["cache.load_segments"](view, none, total), torch.zeros(total, SMALL.width), case=f"{total} rows"
        )
    out = guarded((6, SMALL.width), torch.bfloat16)
    fill = torch.tensor([[-1, 0, 4, 1]], dtype=torch.int32, device=device)
    result = backend.ops["cache.load_segments"](view, fill, 6, out=out)
    require(result is out, "out is not what comes back", op="cache.load_segments")
    check(out, torch.zeros(6, SMALL.width), case="zero fill into out")


@pytest.mark.op("cache.alloc", "cache.view")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
def test_pages_of_all_layers_lie_apart_inside_their_memory(backend: Any, sizes: ModelSizes) -> None:
    caches = caches_of(backend, sizes)
    layout_rules: list[tuple[str, int, int]] = []
    spans: dict[int, list[tuple[int, int, str]]] = {}
    for name in (MAIN, INDEX, SWA, STATE):
        for layer in LAYERS:
            view = backend.ops["cache.view"](caches, name, layer)
            require_equal(view.tensor.shape[0], UNITS, "a view has as many units as were asked for", op="cache.view")
            if name == STATE:
                require_equal(
                    tuple(view.tensor.shape), (UNITS, sizes.state_ring, 2, sizes.width), "shape of a state view"
                )
                require_equal(view.tensor.dtype, torch.float32, "dtype of a state view", op="cache.view")
                size = view.tensor[0].numel() * 4
            else:
                width = sizes.index_width if name == INDEX else sizes.width
                layout = reference.LAYOUTS[view.format]
                size = int(view.page) * layout.entry_bytes(width)
                align = 32 if layout.page_wide else math.lcm(32, layout.entry_bytes(width))
                layout_rules.append((name, int(view.block_stride), align if name != INDEX else 32))
            begin = view.tensor.storage_offset() * view.tensor.element_size()
            storage = view.tensor.untyped_storage()
            require(
                not bool(view.tensor.reshape(-1).view(torch.uint8).any()), "new memory is not zero", op="cache.alloc"
            )
            for unit in range(UNITS):
                at = begin + unit * int(view.block_stride)
                require(at + size <= storage.nbytes(), "a page ends behind its memory", op="cache.view", case=name)
                spans.setdefault(storage.data_ptr(), []).append((at, at + size, f"{name} {layer}, unit {unit}"))
    for name, stride, align in layout_rules:
        require(stride % align == 0, "the unit stride is no multiple of what the format asks for", op="cache.view",
                case=name, got=stride, expected=f"a multiple of {align}")  # fmt: skip
    for found in spans.values():
        found.sort()
        for (_, end, first), (begin, _, second) in pairwise(found):
            require(end <= begin, "two pages share bytes", op="cache.alloc", case=f"{first} and {second}")


@pytest.mark.op("cache.alloc", "cache.view")
@pytest.mark.level("smoke")
def test_units_are_cleared_and_cloned_whole_and_alone(backend: Any, generator: Any) -> None:
    caches = caches_of(backend, SMALL)
    pattern = torch.randint(1, 256, (997,), generator=generator, dtype=torch.uint8)
    views = {name: [backend.ops["cache.view"](caches, name, n) for n in LAYERS] for name in (MAIN, INDEX, SWA, STATE)}
    pools = {"main": (MAIN, INDEX), "swa": (SWA,), "state": (STATE,)}
    for pool, names in pools.items():
        for name in names:
            for view in views[name]:
                Arena.of(view, 1, fill=pattern)
        before = {(n, i): v.tensor.cpu().clone() for n, vs in views.items() for i, v in enumerate(vs)}
        caches.clone(pool, [(1, 3), (3, 4)])
        caches.zero(pool, [2])
        for (name, i), old in before.items():
            expected = old.clone()
            if name in names:
                expected[3], expected[4] = old[1], old[1]
                expected[2] = 0
            now = views[name][i].tensor.cpu()
            same = torch.equal(now.view(torch.uint8), expected.view(torch.uint8))
            require(same, "clone 1 to 3 to 4 and zero 2 changed something else", op="cache.alloc",
                    case=f"pool {pool}, cache {name}, layer {LAYERS[i]}")  # fmt: skip


@pytest.mark.op("cache.view")
@pytest.mark.level("smoke")
def test_views_of_a_layer_share_memory(backend: Any) -> None:
    caches = caches_of(backend, SMALL)
    first, second = (backend.ops["cache.view"](caches, MAIN, LAYERS[0]) for _ in range(2))
    require(first.tensor.data_ptr() == second.tensor.data_ptr(), "two views of a layer are different memory",
            op="cache.view")  # fmt: skip
    require(caches.nbytes >= sum(int(v.block_stride) for v in (first,)) * UNITS, "nbytes is less than the memory",
            op="cache.alloc", got=caches.nbytes)  # fmt: skip


@pytest.mark.op("cache.store", "cache.load_segments")
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("fmt", claimed(*KV))
def test_random_stores_and_loads_agree_with_a_host_copy(
    backend: Any, device: Any, rng: Any, tolerance: Any, fmt: str, seed: int
) -> None:
    generator = rng(7000 + seed)
    sizes = (SMALL, RELEASED)[seed % 2]
    caches = caches_of(backend, sizes, kv=fmt)
    view = backend.ops["cache.view"](caches, (MAIN, SWA)[seed // 2 % 2], LAYERS[seed // 3])
    arena = Arena.of(view, sizes.width, fill=torch.randint(0, 256, (991,), generator=generator, dtype=torch.uint8))
    page = int(view.page)
    for _ in range(4):
        count = int(torch.randint(0, 2 * page, (1,), generator=generator))
        slots = torch.randperm(arena.slots, generator=generator)[:count]
        slots[torch.rand(count, generator=generator) < 0.2] = -1
        kv = random_entries(count, arena.layout, sizes.width, generator)
        store_and_compare(backend, view, sizes.width, slots.tolist(), kv, device, case=f"{count} rows")
        arena.write(slots, kv)
        written = sorted(int(s) for s in slots if s >= 0)
        runs = [[s // page, s % page, s % page + 1, to] for to, s in enumerate(written)]
        got = backend.ops["cache.load_segments"](
            view, torch.tensor(runs, dtype=torch.int32, device=device).reshape(-1, 4), len(runs)
        )
        tolerance("cache.load_segments")(got, loaded(arena, runs, len(runs), torch.bfloat16), case=f"{len(runs)} runs")
