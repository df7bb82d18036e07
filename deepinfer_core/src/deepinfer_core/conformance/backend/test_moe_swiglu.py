"""``moe.swiglu``, and calls that the ops of a layer of experts have to refuse."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import formats
from deepinfer_core.conformance.reference import moe as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.interfaces import Backend

SWIGLU, DISPATCH, EXPERTS, COMBINE = "moe.swiglu", "moe.dispatch", "moe.experts", "moe.combine"
Q8 = ("e4m3", 32, "ue8m0")


def check_swiglu(
    backend: Backend, device: Any, tolerance: Any, x: Tensor, clamp: float, weight: Tensor | None = None, **facts: Any
) -> None:
    """The plain result within one code of fp64; the quantised one is its cast, byte by byte."""
    given = None if weight is None else weight.to(device)
    y = backend.ops[SWIGLU](x.to(device), clamp=clamp, weight=given)
    require(y.dtype == x.dtype, f"{SWIGLU}: the dtype of x is kept", op=SWIGLU, got=y.dtype)
    true = reference.swiglu(x, clamp, weight)
    tolerance(SWIGLU)(y, true, **facts)
    q = backend.ops[SWIGLU](x.to(device), clamp=clamp, weight=given, cast=Q8)
    own = formats.cast(y.cpu(), *Q8)
    require_same_bytes(q.sf.cpu().view(torch.uint8), own.sf, f"{SWIGLU}: scales of the cast", op=SWIGLU, **facts)
    require_same_bytes(q.data.cpu().view(torch.uint8), own.data, f"{SWIGLU}: codes of the cast", op=SWIGLU, **facts)
    if x.dtype == torch.bfloat16:
        best = formats.cast(true.to(torch.bfloat16), *Q8)
        codes = (q.data.cpu().view(torch.uint8), q.sf.cpu().view(torch.uint8))
        tolerance(SWIGLU)(codes, (best.data, best.sf), fmt="e4m3", part="codes", **facts)


@pytest.mark.op(SWIGLU)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("clamp", [0.0, 1.0, 10.0])
@pytest.mark.parametrize("weighted", [False, True], ids=["", "weighted"])
def test_swiglu_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, clamp: float, weighted: bool
) -> None:
    x = samples.normal(generator, 64, 256, scale=6.0)
    weight = torch.rand(64, generator=generator) * 2 if weighted else None
    check_swiglu(backend, device, tolerance, x, clamp, weight)


@pytest.mark.op(SWIGLU)
@pytest.mark.parametrize(("rows", "inner"), [(0, 64), (1, 2304), (65, 96)])
def test_swiglu_of_other_shapes_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, rows: int, inner: int
) -> None:
    x = samples.normal(generator, rows, 2 * inner, scale=3.0)
    check_swiglu(backend, device, tolerance, x, 10.0, torch.rand(rows, generator=generator))


@pytest.mark.op(SWIGLU)
def test_swiglu_rounds_to_the_dtype_asked_for(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    x = samples.normal(generator, 40, 256)
    y = backend.ops[SWIGLU](x.to(device), clamp=10.0, dtype=torch.float32)
    require(y.dtype == torch.float32, f"{SWIGLU}: dtype=", op=SWIGLU, got=y.dtype)
    rounded = backend.ops[SWIGLU](x.to(device), clamp=10.0)
    require_same_bytes(y.to(torch.bfloat16), rounded, f"{SWIGLU}: one rounding of the fp32 result", op=SWIGLU)


@pytest.mark.op(SWIGLU)
def test_swiglu_clamps_the_gate_from_above_and_the_other_from_both_sides(
    backend: Backend, device: Any, tolerance: Any
) -> None:
    gate, up = torch.meshgrid(*[torch.tensor([-1000.0, -12.0, -10.0, -1.0, -0.0, 0.0, 1.0, 10.0, 12.0, 1000.0])] * 2,
                              indexing="ij")  # fmt: skip
    x = torch.cat([gate.reshape(1, -1), up.reshape(1, -1)], dim=1).bfloat16()
    for clamp in (10.0, 1.0):
        y = backend.ops[SWIGLU](x.to(device), clamp=clamp)
        require(bool(y.isfinite().all()), f"{SWIGLU}: a finite input became something else", op=SWIGLU)
        tolerance(SWIGLU)(y, reference.swiglu(x, clamp), case=f"clamp {clamp}")


@pytest.mark.op(SWIGLU)
def test_swiglu_of_a_broken_row_spares_the_others(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x = samples.normal(generator, 5, 128).to(device)
    clean = backend.ops[SWIGLU](x, clamp=10.0)
    x[2, 5], x[2, 64 + 9] = float("nan"), float("nan")
    y = backend.ops[SWIGLU](x, clamp=10.0)
    require(bool(y[2, [5, 9]].isnan().all()), f"{SWIGLU}: NaN was clamped away", op=SWIGLU, got=y[2, [5, 9]].tolist())
    others = torch.tensor([0, 1, 3, 4], device=device)
    require_same_bytes(y[others], clean[others], f"{SWIGLU}: a broken row reached others", op=SWIGLU)


@pytest.mark.op(SWIGLU)
def test_swiglu_of_strided_rows_equals_that_of_contiguous_ones(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    x = samples.normal(generator, 6, 128).to(device)
    kept, expected = x.clone(), backend.ops[SWIGLU](x, clamp=1.0)
    require_same_bytes(x, kept, f"{SWIGLU}: its input was changed", op=SWIGLU)
    require_same_bytes(backend.ops[SWIGLU](samples.strided(x), clamp=1.0), expected, SWIGLU, op=SWIGLU)


@pytest.mark.op(SWIGLU)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("inner", [33, 64, 1000])
def test_swiglu_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, inner: int
) -> None:
    x, weight = samples.normal(generator, 37, 2 * inner).to(device), torch.rand(37, generator=generator).to(device)

    def run(rows: Tensor) -> Tensor:
        rows = rows.to(device)
        y: Tensor = backend.ops[SWIGLU](x[rows], clamp=10.0, weight=weight[rows], dtype=torch.float32)
        return y

    require_row_invariant(SWIGLU, run, 37, generator)


@pytest.mark.op(SWIGLU)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(12))
def test_swiglu_of_random_shapes_equals_fp64(backend: Backend, device: Any, tolerance: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows, inner = (int(torch.randint(1, n, (1,), generator=g)) for n in (200, 40))
    x = samples.normal(g, rows, 64 * inner, scale=4.0)
    weight = torch.rand(rows, generator=g) if seed % 2 else None
    check_swiglu(backend, device, tolerance, x, (0.0, 2.0, 10.0)[seed % 3], weight, seed=seed)


def _bad_calls(backend: Backend, device: Any, g: torch.Generator) -> list[tuple[str, str, tuple[Any, ...], Any]]:
    prepare = backend.ops["quant.prepare_weight"]
    w1 = prepare("w1", list(samples.normal(g, 4, 64, 96).to(device)), use="experts")
    w2 = prepare("w2", list(samples.normal(g, 4, 96, 32).to(device)), use="experts")
    idx, weight = torch.tensor([[0, 3], [1, 2], [3, 1]], device=device), torch.ones(3, 2, device=device)
    x = samples.normal(g, 3, 96).to(device)
    d = backend.ops[DISPATCH](x, idx, weight)
    narrow = backend.ops[DISPATCH](x[:, :64].contiguous(), idx, weight)
    y, bias = torch.zeros(6, 96, dtype=torch.bfloat16, device=device), samples.normal(g, 3, 96).to(device)
    return [
        (SWIGLU, "an odd width", (x[:, :95].contiguous(),), {}),
        (SWIGLU, "integers", (x.int(),), {}),
        (SWIGLU, "weights of fewer rows", (x,), {"weight": torch.ones(2, device=device)}),
        (SWIGLU, "weights of one row", (x,), {"weight": torch.ones(1, device=device)}),
        (SWIGLU, "a negative limit", (x,), {"clamp": -1.0}),
        (SWIGLU, "a cast that does not divide", (x,), {"cast": ("e4m3", 64, "ue8m0")}),
        (SWIGLU, "a result of integers", (x,), {"dtype": torch.int8}),
        (DISPATCH, "ids of fewer tokens", (x, idx[:2], weight[:2]), {}),
        (DISPATCH, "weights of fewer choices", (x, idx, weight[:, :1].contiguous()), {}),
        (DISPATCH, "ids that are no int64", (x, idx.int(), weight), {}),
        (DISPATCH, "weights that are no fp32", (x, idx, weight.bfloat16()), {}),
        (DISPATCH, "tokens of one dimension", (x[0], idx, weight), {}),
        (DISPATCH, "integers", (x.int(), idx, weight), {}),
        (DISPATCH, "an alignment of 0", (x, idx, weight), {"align": 0}),
        (EXPERTS, "tokens of another width", (narrow, w1, w2), {"clamp": 10.0}),
        (EXPERTS, "weights the wrong way round", (d, w2, w1), {"clamp": 10.0}),
        (EXPERTS, "a cast that does not divide", (d, w1, w2), {"clamp": 10.0, "cast": ("e4m3", 64, "ue8m0")}),
        (COMBINE, "fewer rows than were sent", (y[:5], d.handle), {}),
        (COMBINE, "one dimension", (y[0], d.handle), {}),
        (COMBINE, "integers", (y.int(), d.handle), {}),
        (COMBINE, "a bias of one token", (y, d.handle), {"bias": bias[:1]}),
        (COMBINE, "a bias of another width", (y, d.handle), {"bias": bias[:, :1]}),
    ]


@pytest.mark.op(SWIGLU, DISPATCH, EXPERTS, COMBINE)
@pytest.mark.parametrize("number", range(22))
def test_layer_of_what_does_not_fit_is_refused(
    backend: Backend, device: Any, generator: torch.Generator, number: int
) -> None:
    op, case, arguments, options = _bad_calls(backend, device, generator)[number]
    defaults = {"clamp": 10.0} if op == SWIGLU else {}
    require_refused(backend.ops, op, case, *arguments, **{**defaults, **options})
