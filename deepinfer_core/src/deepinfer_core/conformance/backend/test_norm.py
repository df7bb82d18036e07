"""``norm.rms``: against fp64, its residual and its cast byte by byte."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import formats
from deepinfer_core.conformance.reference import norm as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

RMS = "norm.rms"
EPS = 1e-20
CASTS = [("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0"), ("e2m1", 16, "e4m3")]
DTYPES = [torch.bfloat16, torch.float32]
pytestmark = pytest.mark.op(RMS)


def need(backend: Backend, dtype: torch.dtype) -> None:
    if dtype == torch.float32 and "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")


def inputs(
    g: torch.Generator, device: Any, rows: int, width: int, dtype: torch.dtype = torch.bfloat16
) -> tuple[Tensor, Tensor]:
    """Rows of very different size, and a weight of both signs; on the device."""
    size = torch.ldexp(torch.ones(rows, 1), torch.randint(-20, 20, (rows, 1), generator=g))
    x = (torch.randn(rows, width, generator=g) * size).to(dtype)
    return x.to(device), samples.normal(g, width).to(device)


@pytest.mark.level("smoke")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, dtype: torch.dtype
) -> None:
    need(backend, dtype)
    x, w = inputs(generator, device, 7, 256, dtype)
    y, q = backend.ops[RMS](x, w, eps=EPS)
    require(q is None, f"{RMS}: a cast that nobody asked for", op=RMS)
    require(y.dtype == dtype, f"{RMS}: the dtype of x is kept", op=RMS, got=y.dtype)
    tolerance(RMS)(y, reference.rms(x.cpu(), w.cpu(), EPS), rows=True)


@pytest.mark.parametrize("rows", [0, 1, 65])
@pytest.mark.parametrize("width", [32, 64, 96, 1280, 5120])
def test_rms_of_other_shapes_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, rows: int, width: int
) -> None:
    x, w = inputs(generator, device, rows, width)
    y, _ = backend.ops[RMS](x, w.float(), eps=EPS)
    tolerance(RMS)(y, reference.rms(x.cpu(), w.cpu(), EPS), rows=True)


def test_rms_of_heads_works_along_the_last_dimension(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    x = samples.normal(generator, 3, 5, 64).to(device)
    w = samples.normal(generator, 64).to(device)
    tolerance(RMS)(backend.ops[RMS](x, w, eps=EPS)[0], reference.rms(x.cpu(), w.cpu(), EPS), rows=True)


@pytest.mark.parametrize("eps", [1e-6, 0.5, 3.0])
def test_rms_adds_eps_to_the_mean_of_squares(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, eps: float
) -> None:
    """Rows about as large as eps and far smaller: beside the root, behind it or added twice, it shows."""
    x = samples.normal(generator, 9, 128) * torch.tensor([[4.0**-i] for i in range(9)]).bfloat16()
    w = samples.normal(generator, 128)
    y, _ = backend.ops[RMS](x.to(device), w.to(device), eps=eps)
    tolerance(RMS)(y, reference.rms(x, w, eps), rows=True)


@pytest.mark.parametrize("out_scale", [0.5, 3.0, 128.0])
def test_rms_multiplies_the_weight_by_out_scale(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, out_scale: float
) -> None:
    x, w = inputs(generator, device, 5, 128)
    y, q = backend.ops[RMS](x, w, eps=EPS, out_scale=out_scale, cast=CASTS[0])
    tolerance(RMS)(y, reference.rms(x.cpu(), w.cpu(), EPS, out_scale), rows=True)
    require_cast(q, y, CASTS[0])


@pytest.mark.level("smoke")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_adds_the_residual_first_and_updates_it_in_place(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, guarded: Any, dtype: torch.dtype
) -> None:
    need(backend, dtype)
    x, w = inputs(generator, device, 6, 96, dtype)
    old = (x.cpu().float() * torch.randn(6, 96, generator=generator)).to(dtype)
    residual, kept = guarded.of(old), x.clone()
    total = (x.cpu().float() + old.float()).to(dtype)
    y, _ = backend.ops[RMS](x, w, eps=EPS, residual=residual)
    require_same_bytes(residual.cpu(), total, f"{RMS}: the updated residual", op=RMS)
    require_same_bytes(x, kept, f"{RMS}: x was changed", op=RMS)
    tolerance(RMS)(y, reference.rms(total, w.cpu(), EPS), rows=True)


def require_cast(q: Any, y: Tensor, spec: tuple[str, int, str]) -> None:
    """The quantised result is the cast of the rounded one, byte by byte."""
    expected = formats.cast(y.cpu(), *spec)
    require_same_bytes(q.sf.cpu().view(torch.uint8), expected.sf, f"{RMS}: scales of the cast", op=RMS, spec=spec)
    require_same_bytes(q.data.cpu().view(torch.uint8), expected.data, f"{RMS}: codes of the cast", op=RMS, spec=spec)


@pytest.mark.parametrize("spec", CASTS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 9, 130])
def test_rms_casts_its_own_rounded_result(
    backend: Backend, device: Any, generator: torch.Generator, spec: tuple[str, int, str], rows: int
) -> None:
    x, w = inputs(generator, device, rows, 256)
    y, q = backend.ops[RMS](x, w, eps=EPS, cast=spec)
    require_cast(q, y, spec)
    nothing, alone = backend.ops[RMS](x, w, eps=EPS, cast=spec, want_bf16=False)
    require(nothing is None, f"{RMS}: want_bf16=False", op=RMS, got=type(nothing), expected=None)
    require_cast(alone, y, spec)


def test_rms_into_out_overwrites_all_of_it(
    backend: Backend, device: Any, generator: torch.Generator, guarded: Any
) -> None:
    x, w = inputs(generator, device, 5, 96)
    expected, _ = backend.ops[RMS](x, w, eps=EPS)
    out = guarded((5, 96), torch.bfloat16)
    y, _ = backend.ops[RMS](x, w, eps=EPS, out=out)
    require(y is out, f"{RMS}: the result is not 'out'", op=RMS)
    require_same_bytes(out, expected, f"{RMS}: the result in 'out'", op=RMS)


def test_rms_of_strided_rows_equals_that_of_contiguous_ones(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    x, w = inputs(generator, device, 6, 128)
    expected, _ = backend.ops[RMS](x, w, eps=EPS)
    y, _ = backend.ops[RMS](samples.strided(x), w, eps=EPS)
    require_same_bytes(y.contiguous(), expected, f"{RMS}: strided rows", op=RMS)


def test_rms_of_zero_and_of_tiny_rows_is_finite(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    """Squares of the last row vanish in fp32: eps alone stays under the root."""
    x = torch.zeros(4, 64, dtype=torch.bfloat16)
    x[1, 3], x[2], x[3] = 1e-12, 2.0**-30, 2.0**-80
    w = samples.normal(generator, 64)
    y, _ = backend.ops[RMS](x.to(device), w.to(device), eps=EPS)
    require(not y[0].any(), f"{RMS}: a zero row is zero", op=RMS)
    tolerance(RMS)(y, reference.rms(x, w, EPS), rows=True)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_rms_of_a_broken_row_says_so_and_spares_the_others(
    backend: Backend, device: Any, generator: torch.Generator, value: float
) -> None:
    x, w = inputs(generator, device, 5, 64)
    clean, _ = backend.ops[RMS](x, w, eps=EPS)
    x[2, 7] = value
    y, _ = backend.ops[RMS](x, w, eps=EPS)
    require(bool(y[2, 7].isnan()), f"{RMS}: a broken value became a number", op=RMS, case=value, got=y[2, 7].item())
    others = torch.tensor([0, 1, 3, 4], device=device)
    require_same_bytes(y[others], clean[others], f"{RMS}: a broken row reached others", op=RMS, case=value)


def test_rms_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, w = inputs(generator, device, 17, 640)
    run_twice(backend.ops[RMS], x, w, op=RMS, eps=EPS, residual=x.clone(), cast=CASTS[0])


@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("width", [64, 256, 5120])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_rms_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, width: int, dtype: torch.dtype
) -> None:
    need(backend, dtype)
    x, w = inputs(generator, device, 37, width, dtype)

    def run(rows: Tensor) -> Tensor:
        y: Tensor = backend.ops[RMS](x[rows.to(device)], w, eps=EPS)[0]
        return y

    require_row_invariant(RMS, run, 37, generator)


@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(24))
def test_rms_of_random_shapes_equals_fp64(backend: Backend, device: Any, tolerance: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    rows, width = (int(torch.randint(1, n, (1,), generator=g)) for n in (300, 65))
    eps = float(10.0 ** torch.randint(-20, 1, (1,), generator=g))
    x, w = inputs(g, device, rows, 32 * width)
    y, q = backend.ops[RMS](x, w, eps=eps, cast=CASTS[seed % 3])
    tolerance(RMS)(y, reference.rms(x.cpu(), w.cpu(), eps), rows=True, seed=seed)
    require_cast(q, y, CASTS[seed % 3])


def test_rms_of_shapes_that_do_not_fit_is_refused(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, w = inputs(generator, device, 4, 64)
    for case, arguments, options in (
        ("a short weight", (x, w[:32]), {}),
        ("a weight of one value", (x, w[:1]), {}),
        ("a weight with rows", (x, w.expand(4, 64).contiguous()), {}),
        ("integers", (x.int(), w), {}),
        ("a weight of integers", (x, w.int()), {}),
        ("last dimension not contiguous", (samples.normal(generator, 64, 4).to(device).t(), w), {}),
        ("a residual of fewer rows", (x, w), {"residual": x[:3].clone()}),
        ("a residual of one row", (x[:1], w), {"residual": x.clone()}),
        ("a residual of another dtype", (x, w), {"residual": x.float()}),
        ("out of more rows", (x[:1], w), {"out": x.clone()}),
        ("out of another dtype", (x, w), {"out": x.int()}),
        ("a cast that does not divide", (x, w), {"cast": ("e4m3", 48, "ue8m0")}),
        (
            "a cast that does not divide, with a residual",
            (x, w),
            {"cast": ("e4m3", 48, "ue8m0"), "residual": x.clone()},
        ),
        ("an unknown cast", (x, w), {"cast": ("e5m2", 32, "ue8m0"), "out": x.clone()}),
    ):
        require_refused(backend.ops, RMS, case, *arguments, **{"eps": EPS, **options})
