"""``transform.fused`` against its own stages: bit by bit, the norm within its class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.backend.offered import partner
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import formats
from deepinfer_core.conformance.reference import norm as norm_reference
from deepinfer_core.conformance.reference import transform as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.conformance.rotary_samples import positions_for, table_for
from deepinfer_core.interfaces import Backend
from deepinfer_core.types import CacheLayer, CacheSpec

FUSED, ROTARY, ROWS = "transform.fused", "transform.rotary", "transform.rope_rows"
SHAPES = [(64, 16), (32, 16), (128, 64), (512, 64)]
"""Width of a head, and how many of its last dimensions are rotated."""
Q8, Q4MX = ("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0")
EPS = 1e-20


def staged(x: Tensor, rope: Any, hadamard: float | None) -> Tensor:
    """Rotation, then Hadamard, each rounded to the dtype of ``x``; on the host."""
    y = x if rope is None else reference.rotary(x, rope[0].cpu(), rope[1].cpu(), rope[2])
    return y if hadamard is None else reference.hadamard(y, hadamard)


@pytest.mark.op(FUSED)
@pytest.mark.parametrize("use_rope", [False, True], ids=["", "rope"])
@pytest.mark.parametrize("use_hadamard", [False, True], ids=["", "hadamard"])
@pytest.mark.parametrize("cast", [None, Q8, Q4MX], ids=str)
@pytest.mark.parametrize("shape", [(7, 64), (5, 12, 128), (1, 64, 512), (0, 3, 64)], ids=str)
def test_fused_without_norm_equals_its_stages_bit_for_bit(
    backend: Backend, device: Any, generator: torch.Generator,
    use_rope: bool, use_hadamard: bool, cast: tuple[str, int, str] | None, shape: tuple[int, ...],
) -> None:  # fmt: skip
    x = samples.normal(generator, *shape)
    rotary_dim = 16 if shape[-1] == 64 else 64
    rope = (table_for(device, rotary_dim), positions_for(device, shape[0]), False) if use_rope else None
    hadamard = shape[-1] ** -0.5 if use_hadamard else None
    expected = staged(x, rope, hadamard)
    given = x.to(device)
    result, copy = backend.ops[FUSED](given, rope=rope, hadamard=hadamard, cast=cast, copy_stage="transform")
    require_same_bytes(given.cpu(), x, f"{FUSED}: its input was changed", op=FUSED)
    require_same_bytes(copy.cpu(), expected, f"{FUSED}: the copy before the cast", op=FUSED)
    if cast is None:
        require_same_bytes(result.cpu(), expected, f"{FUSED}: the result", op=FUSED)
    else:
        require_cast(result, expected, cast)
        result, copy = backend.ops[FUSED](given, rope=rope, hadamard=hadamard, cast=cast, copy_stage="cast_back")
        require_cast(result, expected, cast)
        back = formats.cast(expected, *cast).values.to(torch.bfloat16)
        require_same_bytes(copy.cpu() + 0.0, back + 0.0, f"{FUSED}: cast_back", op=FUSED)


def require_cast(q: Any, y: Tensor, spec: tuple[str, int, str]) -> None:
    expected = formats.cast(y, *spec)
    require_same_bytes(q.sf.cpu().view(torch.uint8), expected.sf, f"{FUSED}: scales", op=FUSED, spec=spec)
    require_same_bytes(q.data.cpu().view(torch.uint8), expected.data, f"{FUSED}: codes", op=FUSED, spec=spec)


@pytest.mark.op(FUSED)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("weight_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(7, 64), (5, 3, 128), (9, 512), (0, 64)], ids=str)
def test_fused_norm_is_within_a_rounding_and_the_rest_follows_from_it(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator,
    weight_dtype: torch.dtype, shape: tuple[int, ...],
) -> None:  # fmt: skip
    """The copy at stage ``norm`` is judged against fp64; what comes behind is exact, given that copy."""
    x, w = samples.normal(generator, *shape), samples.normal(generator, shape[-1]).to(weight_dtype)
    rope = (table_for(device, 16), positions_for(device, shape[0]), False)
    options = {"norm": (w.to(device), EPS), "rope": rope, "hadamard": 0.125, "cast": Q8}
    result, copy = backend.ops[FUSED](x.to(device), **options, copy_stage="norm")
    tolerance(FUSED)(copy, norm_reference.rms(x, w, EPS))
    require_cast(result, staged(copy.cpu(), rope, 0.125), Q8)
    require_cast(backend.ops[FUSED](x.to(device), **options), staged(copy.cpu(), rope, 0.125), Q8)


@pytest.mark.op(FUSED, "norm.rms")
@pytest.mark.parametrize("width", [64, 512])
def test_fused_norm_is_that_of_the_norm_op(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, width: int
) -> None:
    """A rounding apart in at most one value of 100,000 (``spec/kernels.md`` 2.1)."""
    x, w = samples.normal(generator, 400, width).to(device), samples.normal(generator, width).to(device)
    fused, alone = backend.ops[FUSED](x, norm=(w, EPS)), backend.ops["norm.rms"](x, w, eps=EPS)[0]
    tolerance(FUSED)(fused, alone.cpu())
    apart, most = int((fused != alone).sum()), int(fused.numel() * 1e-5)
    require(apart <= most, f"{FUSED}: values a rounding from those of norm.rms", op=FUSED, got=apart, limit=most)


@pytest.mark.op(FUSED)
@pytest.mark.parametrize("eps", [1e-6, 0.5])
def test_fused_norm_adds_eps_to_the_mean_of_squares(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, eps: float
) -> None:
    x = samples.normal(generator, 8, 64) * torch.tensor([[4.0**-i] for i in range(8)]).bfloat16()
    w = samples.normal(generator, 64)
    y = backend.ops[FUSED](x.to(device), norm=(w.to(device), eps))
    tolerance(FUSED)(y, norm_reference.rms(x, w, eps))


@pytest.mark.op(FUSED)
@pytest.mark.parametrize("conjugate", [False, True], ids=["forward", "conjugate"])
def test_fused_takes_rows_of_a_step(backend: Backend, device: Any, generator: torch.Generator, conjugate: bool) -> None:
    table, positions = table_for(device, 16), positions_for(device, 9)
    x = samples.normal(generator, 9, 3, 64)
    y = backend.ops[FUSED](x.to(device), rope=(backend.ops[ROWS](table, positions), conjugate))
    require_same_bytes(y.cpu(), reference.rotary(x, table.cpu(), positions.cpu(), conjugate), FUSED, op=FUSED)


FORMATS = [
    pytest.param(name, marks=pytest.mark.needs(f"kv:{name}"))
    for name in ("v41", "v41_fp4", "index_fp4", "index_mxfp8", "index_fp8", "bf16")
]


@pytest.mark.op(FUSED, "cache.store")
@pytest.mark.parametrize("name", FORMATS)
def test_fused_store_writes_what_the_store_op_writes(
    backend: Backend, device: Any, generator: torch.Generator, name: str
) -> None:
    """Byte for byte over the whole view, slots -1 first, inside and last included."""
    spec = CacheSpec("c", "index" if name.startswith("index") else "swa", [CacheLayer(0, 8, name, 128)])
    x, w = samples.normal(generator, 7, 128).to(device), samples.normal(generator, 128).to(device)
    rope = (table_for(device, 64), positions_for(device, 7), False)
    slots = torch.tensor([-1, 0, 15, -1, 7, 8, -1], dtype=torch.int32, device=device)
    views = [backend.alloc_caches([spec], {spec.pool: 3}).view("c", 0) for _ in range(2)]
    y, _ = backend.ops[FUSED](x, norm=(w, EPS), rope=rope, copy_stage="transform")
    backend.ops["cache.store"](y, views[1], slots)
    result, copy = backend.ops[FUSED](x, norm=(w, EPS), rope=rope, store=(views[0], slots), copy_stage="transform")
    require(result is None, f"{FUSED}: the result of a store is None", op=FUSED, got=type(result))
    require_same_bytes(copy, y, f"{FUSED}: the copy beside a store", op=FUSED)
    require_same_bytes(views[0].tensor, views[1].tensor, f"{FUSED}: stored bytes", op=FUSED, case=name)
    require(bool(views[0].tensor.any()), f"{FUSED}: nothing was stored", op=FUSED, case=name)


@pytest.mark.op(FUSED)
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        pytest.param("v41", Q8, marks=pytest.mark.needs("kv:v41")),
        pytest.param("v41_fp4", ("e2m1", 16, "e4m3"), marks=pytest.mark.needs("kv:v41_fp4")),
    ],
)
def test_fused_store_gives_back_what_it_stored(
    backend: Backend, device: Any, generator: torch.Generator, name: str, spec: tuple[str, int, str]
) -> None:
    cache = CacheSpec("c", "swa", [CacheLayer(0, 8, name, 64)])
    view = backend.alloc_caches([cache], {"swa": 2}).view("c", 0)
    x = samples.normal(generator, 4, 64)
    slots = torch.tensor([3, -1, 9, 0], dtype=torch.int32, device=device)
    _, copy = backend.ops[FUSED](x.to(device), store=(view, slots), copy_stage="cast_back")
    expected = formats.cast(x, *spec).values.to(torch.bfloat16)
    require_same_bytes(copy.cpu() + 0.0, expected + 0.0, f"{FUSED}: cast_back of a store", op=FUSED)
    segments = torch.tensor([[0, 3, 4, 0], [1, 1, 2, 1], [0, 0, 1, 2]], dtype=torch.int32, device=device)
    read = backend.ops["cache.load_segments"](view, segments, 3).cpu()
    kept = torch.tensor([0, 2, 3])
    require_same_bytes(read + 0.0, expected[kept] + 0.0, f"{FUSED}: what was stored", op=FUSED)


@pytest.mark.op(FUSED)
def test_fused_into_out_overwrites_all_of_it(
    backend: Backend, device: Any, generator: torch.Generator, guarded: Any
) -> None:
    x, rope = samples.normal(generator, 5, 3, 64), (table_for(device, 16), positions_for(device, 5), True)
    out = guarded((5, 3, 64), torch.bfloat16)
    require(backend.ops[FUSED](x.to(device), rope=rope, out=out) is out, f"{FUSED}: 'out'", op=FUSED)
    require_same_bytes(out.cpu(), staged(x, rope, None), f"{FUSED}: the result in 'out'", op=FUSED)


@pytest.mark.op(FUSED)
def test_fused_of_strided_heads_equals_that_of_contiguous_ones(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    x, w = samples.normal(generator, 6, 64).to(device), samples.normal(generator, 64).to(device)
    rope = (table_for(device, 16), positions_for(device, 6), False)
    options = {"norm": (w, EPS), "rope": rope}
    require_same_bytes(
        backend.ops[FUSED](samples.strided(x), **options).contiguous(),
        backend.ops[FUSED](x, **options),
        FUSED,
        op=FUSED,
    )


@pytest.mark.op(FUSED)
def test_fused_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, w = samples.normal(generator, 11, 3, 128).to(device), samples.normal(generator, 128).to(device)
    rope = (table_for(device, 64), positions_for(device, 11), False)
    run_twice(backend.ops[FUSED], x, op=FUSED, norm=(w, EPS), rope=rope, hadamard=0.125, cast=Q8, copy_stage="norm")


@pytest.mark.op(FUSED, ROTARY)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("shape", [(3, 64), (64, 512), (128,)], ids=str)
def test_fused_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, shape: tuple[int, ...]
) -> None:
    x, w = samples.normal(generator, 23, *shape).to(device), samples.normal(generator, shape[-1]).to(device)
    table, positions = table_for(device, 16), positions_for(device, 23)

    def run(rows: Tensor) -> Tensor:
        rows = rows.to(device)
        y: Tensor = backend.ops[FUSED](x[rows], norm=(w, EPS), rope=(table, positions[rows], False), hadamard=0.25)
        return y

    require_row_invariant(FUSED, run, 23, generator)


@pytest.mark.op(FUSED)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(24))
def test_fused_of_random_stages_equals_its_stages(backend: Backend, device: Any, tolerance: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    width, rotary_dim = SHAPES[seed % 4]
    tokens = int(torch.randint(1, 90, (1,), generator=g))
    x, w = samples.uneven(g, tokens, 1 + seed % 7, width, octaves=4), samples.normal(g, width)
    rope = (table_for(device, rotary_dim), positions_for(device, tokens), seed % 2 == 0)
    hadamard = 0.125 if seed % 3 == 0 else None
    cast = (Q8, Q4MX, ("e2m1", 16, "e4m3"))[seed % 3]
    result, copy = backend.ops[FUSED](
        x.to(device), norm=(w.to(device), EPS), rope=rope, hadamard=hadamard, cast=cast, copy_stage="norm"
    )
    tolerance(FUSED)(copy, norm_reference.rms(x, w, EPS), seed=seed)
    require_cast(result, staged(copy.cpu(), rope, hadamard), cast)


@pytest.mark.op(FUSED)
def test_fused_of_what_does_not_fit_is_refused(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, w = samples.normal(generator, 4, 64).to(device), samples.normal(generator, 64).to(device)
    table, positions = table_for(device, 16), positions_for(device, 4)
    view = backend.alloc_caches(
        [CacheSpec("c", "swa", [CacheLayer(0, 8, partner(backend, "kv"), 64)])], {"swa": 2}
    ).view("c", 0)
    slots = torch.arange(4, dtype=torch.int32, device=device)
    for case, value, options in (
        ("an unknown stage", x, {"copy_stage": "rope"}),
        ("a short norm weight", x, {"norm": (w[:32], EPS)}),
        ("fewer positions than tokens", x, {"rope": (table, positions[:3], False)}),
        ("a cast that does not divide", x, {"cast": ("e4m3", 48, "ue8m0")}),
        ("integers", x.int(), {}),
        ("out of another shape", x, {"out": x[:1].clone()}),
        ("last dimension not contiguous", samples.normal(generator, 64, 4).to(device).t(), {"norm": (w, EPS)}),
        ("rows of another width into a cache", x[:, :32].contiguous(), {"store": (view, slots)}),
        ("fewer slots than rows", x, {"store": (view, slots[:3])}),
        ("a cast and a store", x, {"store": (view, slots), "cast": Q8}),
        ("cast_back without a cast", x, {"copy_stage": "cast_back"}),
    ):
        require_refused(backend.ops, FUSED, case, value, **options)
    require(not bool(view.tensor.any()), f"{FUSED}: a refused call wrote into the cache", op=FUSED)
