"""``quant.cast_per_token`` and ``dequantize``: codes, scales and values byte by byte, and the golden vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import formats
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

CAST, DEQUANTIZE = "quant.cast_per_token", "quant.dequantize"
Spec = tuple[str, int, str]
SPECS = [
    pytest.param(("e4m3", 32, "ue8m0"), id="q8"),
    pytest.param(("e2m1", 32, "ue8m0"), id="q4mx"),
    pytest.param(("e2m1", 16, "e4m3"), id="q4nv"),
    pytest.param(("e4m3", 128, "f32"), id="fp8-f32", marks=pytest.mark.needs("feature:fp8_index_f32sf")),
]
EIGHTHS = [(i - 16) / 8 for i in range(32)]
CENTRED = [(i - 15.5) * 0.37 for i in range(32)]
GOLDEN = [
    (("e4m3", 32, "ue8m0"), EIGHTHS, "78", "f8f7f6f5f4f3f2f1f0eeeceae8e4e0d800586064686a6c6e7071727374757677"),
    (("e2m1", 32, "ue8m0"), EIGHTHS, "7e", "eededdccccabaa890021224344545566"),
    (("e2m1", 16, "e4m3"), EIGHTHS, "2b2a", "ffefeededdccab991022435465667677"),
    (("e4m3", 32, "ue8m0"), CENTRED, "79", "fcfbfaf9f8f8f6f5f3f2f0edeae7e1d45461676a6d70727375767878797a7b7c"),
    (("e2m1", 32, "ue8m0"), CENTRED, "7f", "ffeeeedecdbcab891032435465666677"),
    (("e2m1", 16, "e4m3"), [(i - 7.5) * 0.37 for i in range(16)], "2f", "ffeecd9a21546677"),
]
"""Input, scale bytes, data bytes: ``spec/kernels.md`` 1.1 and ``spec/model.md`` 9."""


def quantise(backend: Backend, x: Tensor, spec: Spec, **options: Any) -> Any:
    fmt, group, sf = spec
    return backend.ops[CAST](x, fmt=fmt, group=group, sf=sf, layout="row", **options)


def data_bytes(q: Any) -> Tensor:
    data: Tensor = q.data.cpu().contiguous().view(torch.uint8)
    return data


def scale_bytes(q: Any) -> Tensor:
    scale: Tensor = q.sf.cpu().contiguous()
    return scale if scale.dtype == torch.float32 else scale.view(torch.uint8)


def require_codes(backend: Backend, x: Tensor, spec: Spec, device: Any, **facts: object) -> None:
    """``x`` (on the host) comes out in the codes, scales and values of the reference."""
    require_quantised(backend, quantise(backend, x.to(device), spec), x, spec, **facts)


def require_quantised(backend: Backend, q: Any, x: Tensor, spec: Spec, **facts: object) -> None:
    expected = formats.cast(x, *spec)
    require((q.fmt, q.group) == spec[:2], f"{CAST}: the result says another format", op=CAST, got=(q.fmt, q.group))
    require_same_bytes(scale_bytes(q), expected.sf, f"{CAST}: scales", op=CAST, spec=spec, **facts)
    require_same_bytes(data_bytes(q), expected.data, f"{CAST}: codes", op=CAST, spec=spec, **facts)
    values = backend.ops[DEQUANTIZE](q, dtype=torch.float32).cpu()
    same = torch.equal(values, expected.values.float())
    require(same, f"{DEQUANTIZE}: values are not codes times scales", op=DEQUANTIZE, spec=spec, **facts)


@pytest.mark.op(CAST)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("spec", "values", "scales", "data"), GOLDEN)
def test_cast_of_the_golden_vectors_gives_their_bytes(
    backend: Backend, device: Any, spec: Spec, values: list[float], scales: str, data: str
) -> None:
    q = quantise(backend, torch.tensor(values, dtype=torch.bfloat16, device=device), spec)
    got = (bytes(scale_bytes(q).tolist()).hex(), bytes(data_bytes(q).tolist()).hex())
    expected = (scales, data)
    require(got == expected, f"{CAST}: golden bytes differ", op=CAST, spec=spec, got=got, expected=expected)


@pytest.mark.op(CAST, DEQUANTIZE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("spec", SPECS)
def test_cast_of_uneven_rows_equals_the_reference(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec
) -> None:
    require_codes(backend, samples.uneven(generator, 7, 256), spec, device)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("rows", [0, 1, 33])
@pytest.mark.parametrize("width", [128, 640, 5120])
def test_cast_of_other_shapes_equals_the_reference(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec, rows: int, width: int
) -> None:
    require_codes(backend, samples.uneven(generator, rows, width), spec, device)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
def test_cast_of_fp32_equals_the_reference(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec
) -> None:
    if "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    require_codes(backend, samples.uneven(generator, 9, 256, dtype=torch.float32), spec, device)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
def test_cast_of_heads_works_along_the_last_dimension(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec
) -> None:
    require_codes(backend, samples.uneven(generator, 3, 5, 128), spec, device)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
def test_cast_of_strided_rows_equals_that_of_contiguous_ones(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec
) -> None:
    x = samples.uneven(generator, 6, 256)
    q = quantise(backend, samples.strided(x.to(device)), spec)
    require_quantised(backend, q, x, spec, case="row stride 288, offset 64")


def _rows(spec: Spec, fill: Callable[[int], float]) -> Tensor:
    width = max(spec[1], 32)
    return torch.tensor([[fill(i) for i in range(width)]], dtype=torch.float32).bfloat16()


def extremes(spec: Spec) -> Tensor:
    """Rows ``[n, K]``: zeros of both signs, the largest and smallest values, subnormals, lone values, ties."""
    largest = float(torch.finfo(torch.bfloat16).max)
    rows = [
        _rows(spec, lambda i: 0.0),
        _rows(spec, lambda i: -0.0 if i % 3 else 0.0),
        _rows(spec, lambda i: largest if i % 2 else -largest),
        _rows(spec, lambda i: largest if i == 5 else 1.0),
        _rows(spec, lambda i: (-1) ** i * 2.0**-133 * (i + 1)),  # subnormal in bf16
        _rows(spec, lambda i: (-1) ** i * 2.0**-126 * (1 + i / 128)),
        _rows(spec, lambda i: 2.0 ** (-i)),
        _rows(spec, lambda i: -(2.0 ** (i - 100))),
        _rows(spec, lambda i: 448.0 if i == 0 else 2.0**-10 * i),  # subnormal codes and their ties
        _rows(spec, lambda i: 1e-4 * (i - 8)),
        _rows(spec, lambda i: 6.0 if i == 0 else (-1) ** i * [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1][i % 8]),
        _rows(spec, lambda i: 3.0 if i == 0 else (-1) ** i * [0.25, 0.75, 1.25, 1.75, 2.5, 0.0, 1e-3, 0.5][i % 8]),
    ]
    return torch.cat(rows)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
def test_cast_of_extreme_values_equals_the_reference(backend: Backend, device: Any, spec: Spec) -> None:
    x = extremes(spec)
    for row in range(len(x)):
        require_codes(backend, x[row : row + 1], spec, device, case=f"extreme row {row}")
    require_codes(backend, x, spec, device, case="all extreme rows")


@pytest.mark.op(CAST)
def test_cast_to_e4m3_rounds_every_tie_to_the_even_code(backend: Backend, device: Any) -> None:
    """All magnitudes and all points half-way between two, in groups whose scale is 1."""
    table = torch.tensor(formats.E4M3_MAGNITUDES)
    points = torch.cat([table, (table[1:] + table[:-1]) / 2])
    points = torch.cat([points, -points])
    groups = torch.cat([points, torch.zeros(-len(points) % 31)]).view(-1, 31)
    x = torch.cat([torch.full((len(groups), 1), 448.0), groups], dim=1).bfloat16()
    require_codes(backend, x, ("e4m3", 32, "ue8m0"), device)


@pytest.mark.op(CAST)
@pytest.mark.parametrize(
    ("fmt", "amax", "byte"),
    [("e4m3", a, b) for a, b in ((448.0, 127), (449.0, 128), (224.0, 126), (6.0, 121), (1.0, 119), (1e-4, 105))]
    + [("e2m1", a, b) for a, b in ((6.0, 127), (7.0, 128), (3.0, 126))],
)
def test_cast_scale_byte_follows_the_ceiling_rule(
    backend: Backend, device: Any, fmt: str, amax: float, byte: int
) -> None:
    """Values of ``spec/kernels.md`` 1.1. In fp32 where bf16 does not hold them (449)."""
    dtype = torch.bfloat16 if float(torch.tensor(amax).bfloat16()) == amax or amax < 1 else torch.float32
    if dtype == torch.float32 and "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    x = torch.zeros(1, 32, dtype=dtype, device=device)
    x[0, 3] = -amax
    got = scale_bytes(quantise(backend, x, (fmt, 32, "ue8m0"))).item()
    require(got == byte, f"{CAST}: scale byte", op=CAST, case=f"{fmt}, amax {amax}", got=got, expected=byte)


@pytest.mark.op(CAST)
def test_cast_with_a_rounded_scale_multiplies_by_its_reciprocal(backend: Backend, device: Any) -> None:
    """x = 0.0366 over s = 0.0293 is a tie: the product with fp32(1/s) gives 1.5, a true division 1.0."""
    x = torch.zeros(1, 16, dtype=torch.bfloat16, device=device)
    x[0, 0], x[0, 1] = 0.17578125, 0.03662109375
    q = quantise(backend, x, ("e2m1", 16, "e4m3"))
    got = (scale_bytes(q).item(), backend.ops[DEQUANTIZE](q, dtype=torch.float32)[0, 1].item() / 0.029296875)
    require(got == (0x0F, 1.5), f"{CAST}: the tie of model.md 2.0", op=CAST, got=got, expected=(0x0F, 1.5))


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_cast_of_a_broken_element_stays_in_its_group(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec, value: float
) -> None:
    group = spec[1]
    x = samples.normal(generator, 3, 4 * group)
    clean = quantise(backend, x.to(device), spec)
    x[1, group + 2] = value
    broken = quantise(backend, x.to(device), spec)
    values = backend.ops[DEQUANTIZE](broken, dtype=torch.float32).cpu()
    if spec == ("e4m3", 32, "ue8m0"):
        require(not values[1, group + 2].isfinite(), f"{CAST}: a broken value became finite", op=CAST, case=value)
    whole = torch.ones(3, 4, dtype=torch.bool)
    whole[1, 1] = False
    for part in (scale_bytes, data_bytes):
        got, expected = (part(q).view(3, 4, -1)[whole] for q in (broken, clean))
        require_same_bytes(got, expected, f"{CAST}: a broken value reached other groups", op=CAST, case=value)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
def test_cast_into_out_overwrites_all_of_it(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec
) -> None:
    x = samples.uneven(generator, 5, 256)
    out = quantise(backend, torch.full((5, 256), 3e38, dtype=torch.bfloat16, device=device), spec)
    memory = (out.data.data_ptr(), out.sf.data_ptr())
    result = quantise(backend, x.to(device), spec, out=out)
    require(result is out, f"{CAST}: the result is not 'out'", op=CAST)
    require_quantised(backend, out, x, spec, case="out=")
    require((out.data.data_ptr(), out.sf.data_ptr()) == memory, f"{CAST}: 'out' got other memory", op=CAST)


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("rows", [2, 200])
def test_cast_result_does_not_change_with_its_input(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec, rows: int
) -> None:
    dtype = torch.float32 if "f32" in backend.capabilities.dtypes else torch.bfloat16
    x = samples.uneven(generator, rows, 128, dtype=dtype)
    given = x.to(device, copy=True)
    q = quantise(backend, given, spec)
    require_same_bytes(given, x.to(device), f"{CAST}: the input was changed", op=CAST)
    given.fill_(9.0)
    require_quantised(backend, q, x, spec, case="input overwritten behind the call")


@pytest.mark.op(CAST)
@pytest.mark.parametrize("spec", SPECS)
def test_cast_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator, spec: Spec) -> None:
    fmt, group, sf = spec
    run_twice(backend.ops[CAST], samples.uneven(generator, 11, 256).to(device), op=CAST, fmt=fmt, group=group, sf=sf)


@pytest.mark.op(CAST)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("part", [scale_bytes, data_bytes], ids=["scales", "codes"])
def test_cast_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec, part: Callable[[Any], Tensor]
) -> None:
    x = samples.uneven(generator, 70, 256)
    require_row_invariant(CAST, lambda rows: part(quantise(backend, x[rows].to(device), spec)), 70, generator)


@pytest.mark.op(CAST)
@pytest.mark.level("full")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("seed", range(6))
def test_cast_of_every_bf16_pattern_equals_the_reference(backend: Backend, device: Any, spec: Spec, seed: int) -> None:
    """All finite bf16 bit patterns in random groups: six shuffles, most of whose groups span many octaves."""
    patterns = torch.arange(0, 65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    finite = patterns[patterns.isfinite()]
    if seed % 2:  # neighbours in size together: all codes occur
        order = finite.float().abs().argsort(stable=True)
        finite = finite[order].roll(seed)
    else:
        finite = finite[torch.randperm(len(finite), generator=torch.Generator().manual_seed(seed))]
    require_codes(backend, finite[: len(finite) // 128 * 128].view(-1, 128), spec, device, seed=seed)


@pytest.mark.op(DEQUANTIZE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("shape", [(0, 128), (1, 128), (4, 3, 256)], ids=str)
def test_dequantize_gives_the_values_in_the_dtype_asked_for(
    backend: Backend, device: Any, generator: torch.Generator, spec: Spec, shape: tuple[int, ...]
) -> None:
    x = samples.uneven(generator, *shape)
    q = quantise(backend, x.to(device), spec)
    expected = formats.cast(x, *spec).values
    for dtype in (torch.bfloat16, torch.float32):
        got = backend.ops[DEQUANTIZE](q, dtype=dtype)
        require_same_bytes(got.cpu() + 0.0, expected.to(dtype) + 0.0, DEQUANTIZE, op=DEQUANTIZE, spec=spec)
    require(backend.ops[DEQUANTIZE](q).dtype == torch.bfloat16, f"{DEQUANTIZE}: bf16 is the default", op=DEQUANTIZE)


@pytest.mark.op(CAST)
def test_cast_of_what_it_cannot_quantise_is_refused(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x = samples.normal(generator, 4, 96).to(device)
    for case, value, options in (
        ("width no multiple of the group", x, {"group": 64}),
        ("group 0", x, {"group": 0}),
        ("unknown format", x, {"fmt": "e5m2"}),
        ("unknown scale", x, {"sf": "f64"}),
        ("e4m3 codes with e4m3 scales", x, {"sf": "e4m3"}),
        ("integers", x.int(), {}),
        ("last dimension not contiguous", samples.normal(generator, 96, 4).to(device).t(), {}),
        ("a single number", x[0, 0], {}),
    ):
        require_refused(backend.ops, CAST, case, value, **options)
    require_refused(backend.ops, CAST, "out of another shape", x, out=backend.ops[CAST](x[:3]))
    require_refused(backend.ops, CAST, "out of another format", x, out=backend.ops[CAST](x, fmt="e2m1"))
