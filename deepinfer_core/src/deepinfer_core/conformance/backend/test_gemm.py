"""``gemm.*``: products of dequantised operands against fp64, row by row."""

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
from deepinfer_core.conformance.reference import gemm as reference
from deepinfer_core.conformance.reference import quant as weights
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

DENSE, GROUPED, HEADS = "gemm.dense", "gemm.grouped", "gemm.einsum_heads"
PREPARE = "quant.prepare_weight"
Q8 = ("e4m3", 32, "ue8m0")
KINDS = ["fp8", "fp4", "bf16"]
Pair = tuple[Tensor, Tensor | None]


def checkpoint_weight(kind: str, g: torch.Generator, outputs: int, inputs: int) -> Pair:
    if kind == "bf16":
        return samples.normal(g, outputs, inputs), None
    return samples.fp8_weight(g, outputs, inputs) if kind == "fp8" else samples.fp4_weight(g, outputs, inputs)


def prepared(backend: Backend, device: Any, pair: Pair, **options: Any) -> Any:
    scale = None if pair[1] is None else pair[1].to(device)
    return backend.ops[PREPARE]("w", pair[0].to(device), scale, **options)


def activation(backend: Backend, device: Any, x: Tensor, kind: str) -> tuple[Any, Tensor]:
    """What the product of a weight of ``kind`` takes for bf16 ``x``, and its values in fp64."""
    if kind == "bf16":
        return x.to(device), x.double()
    return backend.ops["quant.cast_per_token"](x.to(device)), formats.cast(x, *Q8).values


@pytest.mark.op(DENSE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("kind", KINDS)
def test_dense_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, kind: str
) -> None:
    pair = checkpoint_weight(kind, generator, 64, 256)
    a, values = activation(backend, device, samples.uneven(generator, 7, 256, octaves=3), kind)
    expected = reference.dense(values, weights.weight_values(*pair))
    weight = prepared(backend, device, pair)
    for out_dtype in (None, torch.bfloat16, torch.float32):
        y = backend.ops[DENSE](a, weight, out_dtype=out_dtype)
        require(y.dtype == (out_dtype or torch.bfloat16), f"{DENSE}: dtype of the result", op=DENSE, got=y.dtype)
        tolerance(DENSE)(y, expected, rows=True, case=f"{kind}, {out_dtype}")


@pytest.mark.op(DENSE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rows", [0, 1, 7, 64, 129])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 64), (24, 1024), (96, 32), (257, 768)])
def test_dense_of_other_shapes_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator,
    kind: str, rows: int, outputs: int, inputs: int,
) -> None:  # fmt: skip
    pair = checkpoint_weight(kind, generator, outputs, inputs)
    a, values = activation(backend, device, samples.normal(generator, rows, inputs), kind)
    y = backend.ops[DENSE](a, prepared(backend, device, pair), out_dtype=torch.float32)
    # Of few outputs one may be next to zero by cancellation, where no class of relative error holds: judged together.
    tolerance(DENSE)(y, reference.dense(values, weights.weight_values(*pair)), rows=outputs >= 24)


@pytest.mark.op(DENSE)
@pytest.mark.level("full")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(4096, 32, 128), (3, 1280, 5120), (1, 5120, 1024)])
def test_dense_of_released_widths_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator,
    kind: str, rows: int, outputs: int, inputs: int,
) -> None:  # fmt: skip
    pair = checkpoint_weight(kind, generator, outputs, inputs)
    a, values = activation(backend, device, samples.normal(generator, rows, inputs), kind)
    y = backend.ops[DENSE](a, prepared(backend, device, pair))
    tolerance(DENSE)(y, reference.dense(values, weights.weight_values(*pair)), rows=True)


@pytest.mark.op(DENSE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("inputs", [512, 4096])
def test_dense_of_long_sums_is_accumulated_in_fp32(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, inputs: int
) -> None:
    """Terms of one sign: a bf16 accumulator stops growing at 256 times a term, long before the end."""
    x, w = samples.ones_and_more(generator, 5, inputs), samples.ones_and_more(generator, 32, inputs)
    y = backend.ops[DENSE](x.to(device), prepared(backend, device, (w, None)), out_dtype=torch.float32)
    tolerance(DENSE)(y, reference.dense(x, w), rows=True)


@pytest.mark.op(DENSE, HEADS)
@pytest.mark.level("smoke")
def test_products_of_sums_that_cancel_keep_what_is_left(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    """A partial sum some 500 times the result: of blocks that are added in bf16 nothing right is left."""
    rise, rest = samples.ones_and_more(generator, 6, 480), samples.ones_and_more(generator, 6, 64)
    fall, tail = samples.ones_and_more(generator, 32, 480), samples.ones_and_more(generator, 32, 64)
    x, w = torch.cat([rise, rise, rest], dim=1), torch.cat([fall, -fall, tail * 2.0**-6], dim=1)
    y = backend.ops[DENSE](x.to(device), prepared(backend, device, (w, None)), out_dtype=torch.float32)
    tolerance(DENSE)(y, reference.dense(x, w), rows=True)
    pairs = x.view(3, 2, 1024)
    y = backend.ops[HEADS](pairs.to(device), prepared(backend, device, (w, None), use="heads:2"))
    tolerance(HEADS)(y, reference.einsum_heads(pairs, w), rows=True)


@pytest.mark.op(DENSE)
@pytest.mark.parametrize("kind", KINDS)
def test_dense_adds_the_accumulator_before_it_rounds(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, kind: str
) -> None:
    pair = checkpoint_weight(kind, generator, 64, 128)
    a, values = activation(backend, device, samples.normal(generator, 6, 128), kind)
    product = reference.dense(values, weights.weight_values(*pair))
    # The accumulator takes away nearly all: what is left would be rounding errors, were the product rounded first.
    acc = (-product.float() * (1 - 2.0**-10)).to(torch.float32)
    y = backend.ops[DENSE](a, prepared(backend, device, pair), acc=acc.to(device))
    require(y.dtype == torch.bfloat16, f"{DENSE}: dtype of the result", op=DENSE, got=y.dtype)
    tolerance(DENSE)(y, product + acc.double(), rows=True)


@pytest.mark.op(DENSE)
def test_dense_into_out_overwrites_all_of_it(
    backend: Backend, device: Any, generator: torch.Generator, guarded: Any
) -> None:
    weight = prepared(backend, device, checkpoint_weight("fp8", generator, 40, 128))
    a, _ = activation(backend, device, samples.normal(generator, 5, 128), "fp8")
    for dtype in (torch.bfloat16, torch.float32):
        out = guarded((5, 40), dtype)
        require(backend.ops[DENSE](a, weight, out=out) is out, f"{DENSE}: 'out'", op=DENSE)
        expected = backend.ops[DENSE](a, weight, out_dtype=dtype)
        require_same_bytes(out, expected, f"{DENSE}: the result in 'out'", op=DENSE)


@pytest.mark.op(DENSE)
def test_dense_of_strided_and_of_stacked_rows_equals_that_of_plain_ones(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    weight = prepared(backend, device, checkpoint_weight("bf16", generator, 40, 128))
    x = samples.normal(generator, 6, 128).to(device)
    kept, expected = x.clone(), backend.ops[DENSE](x, weight)
    require_same_bytes(x, kept, f"{DENSE}: its input was changed", op=DENSE)
    require_same_bytes(backend.ops[DENSE](samples.strided(x), weight), expected, f"{DENSE}: strided", op=DENSE)
    stacked = backend.ops[DENSE](x.view(2, 3, 128), weight)
    require_same_bytes(stacked, expected.view(2, 3, 40), f"{DENSE}: three dimensions", op=DENSE)


@pytest.mark.op(DENSE)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_dense_of_a_broken_row_spares_the_others(
    backend: Backend, device: Any, generator: torch.Generator, value: float
) -> None:
    weight = prepared(backend, device, checkpoint_weight("bf16", generator, 32, 128))
    x = samples.normal(generator, 5, 128).to(device)
    clean = backend.ops[DENSE](x, weight)
    x[3, 9] = value
    y = backend.ops[DENSE](x, weight)
    require(not bool(y[3].isfinite().any()), f"{DENSE}: a broken row became finite", op=DENSE, case=value)
    others = torch.tensor([0, 1, 2, 4], device=device)
    require_same_bytes(y[others], clean[others], f"{DENSE}: a broken row reached others", op=DENSE, case=value)


@pytest.mark.op(DENSE)
@pytest.mark.parametrize("kind", KINDS)
def test_dense_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator, kind: str) -> None:
    weight = prepared(backend, device, checkpoint_weight(kind, generator, 96, 1024))
    a, _ = activation(backend, device, samples.normal(generator, 33, 1024), kind)
    run_twice(lambda a: backend.ops[DENSE](a, weight), a, op=DENSE)


@pytest.mark.op(DENSE)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("inputs", [64, 640, 2048])
def test_dense_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, kind: str, inputs: int
) -> None:
    weight = prepared(backend, device, checkpoint_weight(kind, generator, 96, inputs))
    x = samples.normal(generator, 129, inputs)

    def run(rows: Tensor) -> Tensor:
        y: Tensor = backend.ops[DENSE](activation(backend, device, x[rows], kind)[0], weight, out_dtype=torch.float32)
        return y

    require_row_invariant(DENSE, run, 129, generator)


@pytest.mark.op(GROUPED)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "loads", [[3, 0, 5, 1], [0, 0, 0, 9], [9, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1], [40, 2, 0, 17]], ids=str
)
@pytest.mark.parametrize("inputs", [96, 256])
def test_grouped_multiplies_each_segment_by_its_own_weight(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, kind: str, loads: list[int], inputs: int
) -> None:
    pairs = [checkpoint_weight(kind, generator, 64, inputs) for _ in loads]
    scales = None if kind == "bf16" else [p[1].to(device) for p in pairs if p[1] is not None]
    weight = backend.ops[PREPARE]("w", [p[0].to(device) for p in pairs], scales, use="experts")
    a, values = activation(backend, device, samples.normal(generator, sum(loads), inputs), kind)
    ends = torch.tensor(loads).cumsum(0)
    expected = reference.grouped(values, [weights.weight_values(*p) for p in pairs], ends.tolist())
    y = backend.ops[GROUPED](a, weight, ends.to(torch.int32).to(device))
    require(y.dtype == torch.bfloat16, f"{GROUPED}: dtype of the result", op=GROUPED, got=y.dtype)
    tolerance(GROUPED)(y, expected, rows=True)
    wide = backend.ops[GROUPED](a, weight, ends.tolist(), out_dtype=torch.float32)
    tolerance(GROUPED)(wide, expected, rows=True)


def stack(
    backend: Backend, device: Any, g: torch.Generator, experts: int, outputs: int, inputs: int
) -> tuple[Any, Tensor]:
    plain = samples.normal(g, experts, outputs, inputs)
    return backend.ops[PREPARE]("w", list(plain.to(device)), use="experts"), plain


@pytest.mark.op(GROUPED)
def test_grouped_with_rows_behind_the_last_segment_leaves_the_others_alone(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, guarded: Any
) -> None:
    """What stands in rows of no segment is undefined, but it must not be read into a segment."""
    weight, plain = stack(backend, device, generator, 3, 32, 64)
    a = samples.normal(generator, 12, 64)
    a[9:] = float("nan")
    expected = reference.grouped(a[:9], list(plain), [4, 4, 9])
    ends = torch.tensor([4, 4, 9], dtype=torch.int32, device=device)
    tolerance(GROUPED)(backend.ops[GROUPED](a.to(device), weight, ends)[:9], expected, rows=True)
    out = guarded((12, 32), torch.bfloat16)
    require(backend.ops[GROUPED](a.to(device), weight, ends, out=out) is out, f"{GROUPED}: 'out'", op=GROUPED)
    tolerance(GROUPED)(out[:9], expected, rows=True)


@pytest.mark.op(GROUPED)
@pytest.mark.needs("feature:batch_invariant")
def test_grouped_row_does_not_depend_on_the_rows_of_its_expert(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    weight, _ = stack(backend, device, generator, 2, 64, 1024)
    x = samples.normal(generator, 40, 1024).to(device)

    def run(rows: Tensor) -> Tensor:
        """The rows under the second expert, behind a first one with three."""
        a = torch.cat([x[:3], x[rows.to(device)]])
        ends = torch.tensor([3, len(a)], dtype=torch.int32, device=device)
        y: Tensor = backend.ops[GROUPED](a, weight, ends)[3:]
        return y

    require_row_invariant(GROUPED, run, 40, generator)


@pytest.mark.op(GROUPED)
def test_grouped_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator) -> None:
    weight, _ = stack(backend, device, generator, 3, 64, 256)
    a = samples.normal(generator, 20, 256).to(device)
    run_twice(lambda a: backend.ops[GROUPED](a, weight, [4, 4, 20]), a, op=GROUPED)


@pytest.mark.op(HEADS)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("tokens", "groups", "outputs", "inputs"), [(7, 2, 32, 128), (0, 2, 32, 64), (1, 4, 64, 64), (65, 3, 24, 1024)]
)
def test_einsum_heads_multiplies_each_group_by_its_own_weight(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator,
    kind: str, tokens: int, groups: int, outputs: int, inputs: int,
) -> None:  # fmt: skip
    pair = checkpoint_weight(kind, generator, groups * outputs, inputs)
    weight = prepared(backend, device, pair, use=f"heads:{groups}")
    a, values = activation(backend, device, samples.normal(generator, tokens, groups, inputs), kind)
    y = backend.ops[HEADS](a, weight)
    require(y.dtype == torch.bfloat16, f"{HEADS}: dtype of the result", op=HEADS, got=y.dtype)
    tolerance(HEADS)(y, reference.einsum_heads(values, weights.weight_values(*pair)), rows=True)


@pytest.mark.op(HEADS)
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_einsum_heads_casts_its_own_rounded_result(
    backend: Backend, device: Any, generator: torch.Generator, guarded: Any, tokens: int
) -> None:
    weight = prepared(backend, device, checkpoint_weight("fp8", generator, 128, 64), use="heads:2")
    a, _ = activation(backend, device, samples.normal(generator, tokens, 2, 64), "fp8")
    y = backend.ops[HEADS](a, weight)
    q = backend.ops[HEADS](a, weight, out_fp8=True)
    expected = formats.cast(y.cpu(), *Q8)
    require_same_bytes(q.sf.cpu().view(torch.uint8), expected.sf, f"{HEADS}: scales", op=HEADS)
    require_same_bytes(q.data.cpu().view(torch.uint8), expected.data, f"{HEADS}: codes", op=HEADS)
    out = guarded((tokens, 2, 64), torch.bfloat16)
    require(backend.ops[HEADS](a, weight, out=out) is out, f"{HEADS}: 'out'", op=HEADS)
    require_same_bytes(out, y, f"{HEADS}: the result in 'out'", op=HEADS)


@pytest.mark.op(HEADS)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("inputs", [128, 2048])
def test_einsum_heads_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, inputs: int
) -> None:
    weight = prepared(backend, device, checkpoint_weight("fp8", generator, 64, inputs), use="heads:2")
    x = samples.normal(generator, 70, 2, inputs)

    def run(rows: Tensor) -> Tensor:
        y: Tensor = backend.ops[HEADS](activation(backend, device, x[rows], "fp8")[0], weight)
        return y

    require_row_invariant(HEADS, run, 70, generator)


@pytest.mark.op(HEADS)
def test_einsum_heads_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator) -> None:
    weight = prepared(backend, device, checkpoint_weight("fp8", generator, 64, 256), use="heads:2")
    a, _ = activation(backend, device, samples.normal(generator, 19, 2, 256), "fp8")
    run_twice(lambda a: backend.ops[HEADS](a, weight), a, op=HEADS)


@pytest.mark.op(DENSE, GROUPED, HEADS)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("kind", KINDS)
def test_products_of_random_shapes_equal_fp64(
    backend: Backend, device: Any, tolerance: Any, kind: str, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=g))

    rows, outputs, inputs, groups = draw(1, 200), 8 * draw(4, 40), 32 * draw(1, 40), draw(1, 6)
    pair = checkpoint_weight(kind, g, outputs, inputs)
    a, values = activation(backend, device, samples.normal(g, rows, inputs), kind)
    y = backend.ops[DENSE](a, prepared(backend, device, pair))
    tolerance(DENSE)(y, reference.dense(values, weights.weight_values(*pair)), rows=True, seed=seed)
    pair = checkpoint_weight(kind, g, groups * outputs, inputs)
    a, values = activation(backend, device, samples.normal(g, rows % 31 + 1, groups, inputs), kind)
    y = backend.ops[HEADS](a, prepared(backend, device, pair, use=f"heads:{groups}"))
    tolerance(HEADS)(y, reference.einsum_heads(values, weights.weight_values(*pair)), rows=True, seed=seed)


def _bad_calls(backend: Backend, device: Any, g: torch.Generator) -> list[tuple[str, str, tuple[Any, ...], Any]]:
    dense = prepared(backend, device, checkpoint_weight("bf16", g, 32, 64))
    heads = prepared(backend, device, checkpoint_weight("bf16", g, 32, 64), use="heads:2")
    grouped, _ = stack(backend, device, g, 3, 32, 64)
    x = samples.normal(g, 6, 64).to(device)
    pairs = x.view(3, 2, 64)
    out = torch.zeros(6, 32, dtype=torch.bfloat16, device=device)
    transposed: Callable[..., Tensor] = lambda *shape: samples.normal(g, *shape).to(device).transpose(-1, -2)  # noqa: E731
    return [
        (DENSE, "another inner width", (x[:, :32].contiguous(), dense), {}),
        (DENSE, "a stack of weights", (x, grouped), {}),
        (DENSE, "integers", (x.int(), dense), {}),
        (DENSE, "last dimension not contiguous", (transposed(64, 6), dense), {}),
        (DENSE, "an accumulator of one row", (x, dense), {"acc": torch.zeros(1, 32, device=device)}),
        (DENSE, "an accumulator of bf16", (x, dense), {"acc": out.clone()}),
        (DENSE, "out of one row more", (x[:1], dense), {"out": out}),
        (DENSE, "out of integers", (x, dense), {"out": out.int()}),
        (DENSE, "an integer result", (x, dense), {"out_dtype": torch.int32}),
        (DENSE, "out of another dtype than asked for", (x, dense), {"out": out, "out_dtype": torch.float32}),
        (GROUPED, "another inner width", (x[:, :32].contiguous(), grouped, [2, 4, 6]), {}),
        (GROUPED, "a single weight", (x, dense, [6]), {}),
        (GROUPED, "fewer segments than weights", (x, grouped, [2, 6]), {}),
        (GROUPED, "segments past the rows", (x, grouped, [2, 4, 7]), {}),
        (GROUPED, "segments that go back", (x, grouped, [4, 2, 6]), {}),
        (GROUPED, "three dimensions", (pairs, grouped, [1, 2, 3]), {}),
        (GROUPED, "out of fewer rows", (x, grouped, [2, 4, 6]), {"out": out[:5].clone()}),
        (HEADS, "another inner width", (pairs[..., :32].contiguous(), heads), {}),
        (HEADS, "another number of groups", (x.view(2, 3, 64), heads), {}),
        (HEADS, "two dimensions", (x, heads), {}),
        (HEADS, "integers", (pairs.int(), heads), {}),
        (HEADS, "out of another shape", (pairs[:1], heads), {"out": out.view(6, 2, 16)}),
    ]


@pytest.mark.op(DENSE, GROUPED, HEADS)
@pytest.mark.parametrize("number", range(22))
def test_product_of_what_does_not_fit_is_refused(
    backend: Backend, device: Any, generator: torch.Generator, number: int
) -> None:
    op, case, arguments, options = _bad_calls(backend, device, generator)[number]
    require_refused(backend.ops, op, case, *arguments, **options)
