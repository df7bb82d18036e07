"""Which calls of the row ops go to a kernel, which instance, and which to the plain op: no device needed."""

import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_core.interfaces import cpu_backend
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cuda import rows
from deepinfer_cuda.jit.factory import Factory
from deepinfer_cuda.ops import cache, compress, norm, quant, transform
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.parts.row_layout import BLOCK, CHUNK, row_layout

Q8, Q4MX = ("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0")


@pytest.fixture
def launches(monkeypatch):
    """Launches in order: the kernel's name, its parameters and its arguments. Host tensors count as the device's."""
    seen = []

    def call(self, **params):
        return lambda *arguments: seen.append((self.name, params, arguments))

    monkeypatch.setattr(rows, "on_device", lambda *tensors: True)
    monkeypatch.setattr(Factory, "__call__", call)
    return seen


def view_of(fmt, width, page=64):
    pool = "index" if fmt.startswith("index") else "main"
    layers = [CacheLayer(0, page, fmt, width), CacheLayer(1, page, fmt, width)]
    return cpu_backend().alloc_caches([CacheSpec("c", pool, layers)], {pool: 3}).view("c", 1)


@pytest.mark.parametrize("width", [8, 32, 64, 96, 128, 256, 512, 640, 1280, 2560, 4096, 5120, 7168])
def test_a_layout_holds_every_chunk_of_a_row_once(width):
    layout = row_layout(width)
    held = [j * layout.lanes + lane for lane in range(layout.lanes) for j in range(layout.chunks)]
    assert sorted(held) == list(range(width // CHUNK))
    assert BLOCK % layout.lanes == 0


@pytest.mark.parametrize("width", [0, 4, 12, 8 * 37, 5376 + 8])
def test_a_width_without_layout_goes_to_the_plain_op(launches, width):
    assert row_layout(width) is None
    x, w = torch.randn(3, width).bfloat16(), torch.randn(width)
    if width:
        y, _ = norm.rms(x, w, eps=1e-6)
        assert torch.equal(y, plain_op("norm.rms")(x, w, eps=1e-6)[0])
    assert launches == []


def test_norm_of_bf16_rows_is_one_launch_of_the_asked_stages(launches):
    x, w = torch.randn(5, 1280).bfloat16(), torch.randn(1280)
    y, q = norm.rms(x, w, eps=1e-6, cast=Q8)
    ((name, params, arguments),) = launches
    wanted = {"width": 1280, "heads": 1, "norm": "float32", "residual": False, "scaled": False, "out": True}
    assert name == "rows"
    assert {key: params[key] for key in wanted} == wanted
    assert (params["fmt"], params["target"], params["exact"]) == ("e4m3", "scales", True)
    assert arguments[1].data_ptr() == y.data_ptr()
    assert q.forms == ("exact",)
    assert q.sf.shape == (5, 40)


def test_an_empty_batch_launches_nothing(launches):
    y, q = norm.rms(torch.zeros(0, 256).bfloat16(), torch.ones(256), eps=1e-6, cast=Q4MX)
    assert (tuple(y.shape), tuple(q.data.shape), tuple(q.sf.shape)) == ((0, 256), (0, 128), (0, 8))
    assert launches == []


def test_fp32_rows_take_the_plain_op(launches):
    x, w = torch.randn(5, 256), torch.randn(256)
    assert torch.equal(norm.rms(x, w, eps=1e-6)[0], plain_op("norm.rms")(x, w, eps=1e-6)[0])
    rope = (torch.randn(9, 16), torch.arange(5), True)
    assert torch.equal(transform.rotary(x, rope), plain_op("transform.rotary")(x, rope))
    held = (transform.rope_rows(rope[0], rope[1]), True)
    assert torch.equal(transform.fused(x, rope=held), plain_op("transform.rotary")(x, rope))
    assert launches == []


def test_rotation_in_place_touches_the_rotated_values_alone(launches):
    wide = torch.randn(6, 8 * 512 + 128).bfloat16()
    x = wide[:, : 8 * 512].view(6, 8, 512)
    rows_ = transform.rope_rows(torch.randn(100, 64), torch.arange(6, dtype=torch.int32))
    assert transform.fused(x, rope=(rows_, True), out=x) is x
    ((_, params, arguments),) = launches
    assert (params["width"], params["rope"], params["conjugate"], params["heads"]) == (64, 64, True, 8)
    assert arguments[0].stride() == (8 * 512 + 128, 512, 1)
    assert arguments[0].data_ptr() == arguments[1].data_ptr() == x.data_ptr() + 2 * (512 - 64)


@pytest.mark.parametrize(
    ("fmt", "width", "target", "unit"),
    [
        ("v41", 512, "cache", 16),
        ("v41", 64, "cache", 2),
        ("v41_fp4", 512, "cache", 16),
        ("v41_fp4", 64, "cache", 4),
        ("index_fp4", 128, "split", 16),
        ("index_fp8", 128, "split", 16),
        ("bf16", 512, "cache", 16),
    ],
)
def test_a_store_knows_what_addresses_are_multiples_of(launches, fmt, width, target, unit):
    view, slots = view_of(fmt, width), torch.tensor([4, -1, 0], dtype=torch.int32)
    x, w = torch.randn(3, width).bfloat16(), torch.ones(width)
    assert transform.fused(x, norm=(w, 1e-6), store=(view, slots)) is None
    ((_, params, arguments),) = launches
    assert (params["target"], params["unit"]) == (target, unit)
    assert arguments[10].data_ptr() == view.tensor.data_ptr()
    assert arguments[12] == view.page


def test_a_copy_before_a_store_is_of_the_named_stage(launches):
    view, slots = view_of("v41", 512), torch.tensor([4, -1, 0], dtype=torch.int32)
    x, w = torch.randn(3, 512).bfloat16(), torch.ones(512)
    for stage, flag in (("norm", "copy"), ("transform", "out"), ("cast_back", "exact")):
        launches.clear()
        result, copy = transform.fused(x, norm=(w, 1e-6), store=(view, slots), copy_stage=stage)
        ((_, params, _),) = launches
        assert result is None
        assert (copy.shape, copy.dtype) == (x.shape, x.dtype)
        assert [name for name in ("copy", "out", "exact") if params[name]] == [flag]


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (norm.rms, lambda x, v, s: ((x, torch.ones(64)), {"eps": 1e-6})),
        (norm.rms, lambda x, v, s: ((x, torch.ones(512)), {"eps": 1e-6, "cast": ("e4m3", 48, "ue8m0")})),
        (norm.rms, lambda x, v, s: ((x, torch.ones(512)), {"eps": 1e-6, "residual": x[:2].clone()})),
        (quant.cast_per_token, lambda x, v, s: ((x,), {"fmt": "e5m2"})),
        (transform.fused, lambda x, v, s: ((x,), {"store": (v, s[:2])})),
        (transform.fused, lambda x, v, s: ((x,), {"store": (v, s), "cast": Q8})),
        (transform.fused, lambda x, v, s: ((x,), {"copy_stage": "cast_back"})),
        (transform.rotary, lambda x, v, s: ((x, (torch.ones(9, 64), torch.arange(2), False)), {})),
        (cache.store, lambda x, v, s: ((x[:, :64].contiguous(), v, s), {})),
        (cache.load_segments, lambda x, v, s: ((v, torch.zeros(3, 3, dtype=torch.int32), 4), {})),
    ],
)
def test_what_breaks_the_contract_is_refused_and_not_launched(launches, op, arguments):
    view, slots = view_of("v41", 512), torch.tensor([4, -1, 0], dtype=torch.int32)
    given, options = arguments(torch.randn(3, 512).bfloat16(), view, slots)
    with pytest.raises(ShapeContractError):
        op(*given, **options)
    assert launches == []


def test_loads_of_index_keys_stay_codes_and_others_become_bf16(launches):
    segments = torch.tensor([[1, 0, 64, 0]], dtype=torch.int32)
    keys = cache.load_segments(view_of("index_fp4", 128), segments, 64)
    values = cache.load_segments(view_of("v41_fp4", 512), segments, 64)
    assert [name for name, _, _ in launches] == ["gather_codes", "gather_rows"]
    assert (tuple(keys.data.shape), tuple(keys.sf.shape), keys.fmt) == ((64, 64), (64, 4), "e2m1")
    assert (tuple(values.shape), values.dtype) == ((64, 512), torch.bfloat16)


def test_long_rows_are_cast_in_pieces(launches):
    quant.cast_per_token(torch.randn(4, 5120).bfloat16(), fmt="e2m1")
    quant.cast_per_token(torch.randn(4, 640).bfloat16())
    assert [(p["width"], p["heads"], p["target"]) for _, p, _ in launches] == [(512, 10, "codes"), (128, 5, "scales")]


def test_compressor_rows_of_one_product_are_read_where_they_lie(launches):
    both, state = torch.randn(6, 1024), torch.zeros(3, 7, 2, 512)
    slots, context = torch.zeros(6, dtype=torch.int32), torch.arange(1, 7, dtype=torch.int32)
    out = compress.decode(both[:, :512], both[:, 512:], state, slots, context, 2, max_q=6)
    ((name, params, arguments),) = launches
    assert (name, params) == ("compress_decode", {"width": 512, "ratio": 2, "dtype": "bfloat16"})
    assert arguments[0].stride(0) == 1024
    assert (out.shape, out.dtype) == ((6, 512), torch.bfloat16)


def test_compressor_ring_that_is_too_short_is_refused(launches):
    rows_, state = torch.randn(6, 512), torch.zeros(3, 6, 2, 512)
    index = torch.zeros(6, dtype=torch.int32)
    with pytest.raises(ShapeContractError):
        compress.decode(rows_, rows_, state, index, index, 2, max_q=6)
    assert launches == []
