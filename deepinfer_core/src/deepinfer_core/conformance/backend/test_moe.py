"""``moe.dispatch``, ``experts``, ``combine``, ``swiglu`` and ``mega`` against loops over tokens and experts.

The order of dispatched rows is a backend's own affair. Routing weights are all different, so a dispatched row says by
its weight which (token, choice) it is.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import frozen
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference import formats
from deepinfer_core.conformance.reference import moe as reference
from deepinfer_core.conformance.reference import quant as weights
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

DISPATCH, EXPERTS, COMBINE, SWIGLU, MEGA = "moe.dispatch", "moe.experts", "moe.combine", "moe.swiglu", "moe.mega"
Q8 = ("e4m3", 32, "ue8m0")
LOADS = {
    "spread": [[0, 3], [3, 1], [2, 0], [1, 2], [0, 1], [3, 2], [2, 1]],
    "all to one": [[2, 2]] * 5,
    "an expert without rows": [[0, 3], [3, 0], [0, 3]],
    "one token": [[3, 1]],
    "no token": [],
    "masked rows": [[-1, -1], [0, 2], [-1, -1], [2, 3], [-1, -1]],
    "a masked choice": [[-1, 2], [1, -1], [0, 3]],
    "all masked": [[-1, -1], [-1, -1]],
    "eight choices each": [[0, 1, 2, 3, 3, 2, 1, 0], [3, 3, 2, 2, 1, 1, 0, 0], [1, -1, 0, 2, -1, 3, 2, 1]],
    "one choice each": [[2], [0], [2], [3], [1]],
}


def choices(pattern: list[list[int]]) -> tuple[Tensor, Tensor]:
    """ids int64 ``[T, k]`` and a different weight for each of them."""
    idx = torch.tensor(pattern, dtype=torch.int64).view(len(pattern), -1 if pattern else 2)
    weight = (torch.arange(idx.numel(), dtype=torch.float32) + 3) / 16
    return idx, weight.view(idx.shape).masked_fill(idx < 0, 0.0)


def values_of(backend: Backend, x: Any) -> Tensor:
    """Dispatched rows, quantised or not, as fp32 on the host."""
    plain = x if isinstance(x, Tensor) else backend.ops["quant.dequantize"](x, dtype=torch.float32)
    return plain.float().cpu()


def places(d: Any, idx: Tensor, weight: Tensor) -> list[tuple[int, int, int]]:
    """(row, token, choice) of each dispatched choice. A row of weight 0 is filling: a device that must not wait for the
    number of choices has rows for all of them, and others fill up the rows of each expert."""
    known = {weight[t, c].item(): (t, c) for t in range(len(idx)) for c in range(idx.shape[1]) if idx[t, c] >= 0}
    given = d.weight.cpu().tolist()
    found = [(row, *known.get(w, (-1, -1))) for row, w in enumerate(given) if w != 0.0]
    require(all(t >= 0 for _, t, _ in found), f"{DISPATCH}: a row with the weight of no choice", op=DISPATCH, got=given)
    require_equal(len(found), len(known), f"{DISPATCH}: number of rows", op=DISPATCH)
    return found


def rows_of(x: Tensor, order: list[tuple[int, int, int]]) -> Tensor:
    """The rows of ``x`` that are no filling, on the host."""
    return x.cpu()[torch.tensor([row for row, _, _ in order], dtype=torch.long)]


@pytest.mark.op(DISPATCH)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("quantised", [False, True], ids=["bf16", "q8"])
def test_dispatch_sends_each_token_to_each_of_its_experts(
    backend: Backend, device: Any, generator: torch.Generator, load: str, quantised: bool
) -> None:
    idx, weight = choices(LOADS[load])
    x = samples.normal(generator, len(idx), 64)
    given = backend.ops["quant.cast_per_token"](x.to(device)) if quantised else x.to(device)
    d = backend.ops[DISPATCH](given, idx.to(device), weight.to(device))
    true = formats.cast(x, *Q8).values.float() if quantised else x.float()
    order = places(d, idx, weight)
    sent = rows_of(values_of(backend, d.x), order)
    require_equal(
        len({(t, c) for _, t, c in order}), len(order), f"{DISPATCH}: a choice was sent twice", op=DISPATCH, case=load
    )
    expected = true[[t for _, t, _ in order]].view(-1, 64)
    require_same_bytes(sent + 0.0, expected + 0.0, f"{DISPATCH}: rows", op=DISPATCH, case=load)
    experts = [int(idx[t, c]) for _, t, c in order]
    require_equal(experts, sorted(experts), f"{DISPATCH}: rows are not sorted by expert", op=DISPATCH, case=load)


@pytest.mark.op(COMBINE, DISPATCH)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("with_bias", [False, True], ids=["", "bias"])
def test_combine_sums_the_rows_of_each_token(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, load: str, with_bias: bool
) -> None:
    idx, weight = choices(LOADS[load])
    x = samples.normal(generator, len(idx), 64)
    d = backend.ops[DISPATCH](x.to(device), idx.to(device), weight.to(device))
    y = samples.normal(generator, len(d.weight), 64)
    bias = samples.normal(generator, len(idx), 64) if with_bias else None
    given = None if bias is None else bias.to(device)
    got = backend.ops[COMBINE](y.to(device), d.handle, bias=given)
    rows: list[dict[int, Tensor]] = [{} for _ in range(len(idx))]
    for row, t, c in places(d, idx, weight):
        e = int(idx[t, c])
        rows[t][e] = rows[t][e] + y[row].double() if e in rows[t] else y[row].double()
    require((got.dtype, tuple(got.shape)) == (torch.bfloat16, (len(idx), 64)), f"{COMBINE}: shape", op=COMBINE)
    tolerance(COMBINE)(got, reference.combine(rows, 64, bias), case=load)


@pytest.mark.op(COMBINE)
def test_combine_adds_in_fp32_and_rounds_once(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    """Six rows that nearly cancel: a sum rounded to bf16 on the way leaves nothing of what remains."""
    idx, weight = choices([[0, 1, 2, 3, 4, 5]] * 9)
    d = backend.ops[DISPATCH](samples.normal(generator, 9, 64).to(device), idx.to(device), weight.to(device))
    order = places(d, idx, weight)
    y = torch.zeros(len(d.weight), 64)
    part = torch.tensor([256.0, 1.0, -256.0, 2.0**-6, 1.5, 2.0**-5])
    for row, t, c in order:
        y[row] = part[c] * (1 + t)
    got = backend.ops[COMBINE](y.bfloat16().to(device), d.handle)
    total = float(part.double().sum())
    expected = torch.tensor([[total * (1 + t)] * 64 for t in range(9)], dtype=torch.float64)
    tolerance(COMBINE)(got, expected)


@pytest.mark.op(COMBINE)
@pytest.mark.needs("feature:batch_invariant")
def test_combine_adds_in_ascending_expert_id_and_the_shared_expert_last(
    backend: Backend, device: Any, tolerance: Any
) -> None:
    """In fp32 the order shows: of 1e8, -1e8 and 1 only (1e8 - 1e8) + 1 is 1."""
    if "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    idx, weight = choices([[2, 0, 1], [1, 2, 0], [0, 1, 2]])
    d = backend.ops[DISPATCH](torch.zeros(3, 32, device=device), idx.to(device), weight.to(device))
    order = places(d, idx, weight)
    for parts, last, expected in (([1e8, -1e8, 1.0], 0.0, 1.0), ([2.0**-24, 1.0, -1.0], 2.0**-24, 2.0**-24)):
        y = torch.zeros(len(d.weight), 32)
        for row, t, c in order:
            y[row] = parts[int(idx[t, c])]
        got = backend.ops[COMBINE](y.to(device), d.handle, bias=torch.full((3, 32), last, device=device))
        tolerance(COMBINE, output="bytes")(got, torch.full((3, 32), expected, dtype=torch.float64))


@frozen(eq=False)
class Experts:
    """Stacked weights of a backend, and their values: ``up`` ``[2I, H]`` and ``down`` ``[H, I]`` of each expert."""

    w1: Any
    w2: Any
    up: list[Tensor]
    down: list[Tensor]


def make_experts(
    backend: Backend, device: Any, g: torch.Generator, *, hidden: int = 64, inner: int = 64, count: int = 4
) -> Experts:
    """FP4 experts as in the checkpoint, gate and up as a list that is joined."""
    pairs = [[samples.fp4_weight(g, inner, hidden), samples.fp4_weight(g, inner, hidden)] for _ in range(count)]
    downs = [samples.fp4_weight(g, hidden, inner) for _ in range(count)]
    prepare = backend.ops["quant.prepare_weight"]
    w1 = prepare(
        "w1", [[w.to(device) for w, _ in pair] for pair in pairs], [[s.to(device) for _, s in pair] for pair in pairs],
        use="experts",
    )  # fmt: skip
    w2 = prepare("w2", [w.to(device) for w, _ in downs], [s.to(device) for _, s in downs], use="experts")
    up = [torch.cat([weights.weight_values(*part) for part in pair]) for pair in pairs]
    return Experts(w1, w2, up, [weights.weight_values(*pair) for pair in downs])


def run_experts(
    backend: Backend, device: Any, e: Experts, x: Tensor, idx: Tensor, weight: Tensor,
    clamp: float = 10.0, cast: tuple[str, int, str] | None = Q8, **options: Any,
) -> tuple[Any, Tensor]:  # fmt: skip
    """Dispatch and experts; released mode quantises the tokens, without ``cast`` they stay as they are."""
    given = x.to(device) if cast is None else backend.ops["quant.cast_per_token"](x.to(device))
    d = backend.ops[DISPATCH](given, idx.to(device), weight.to(device), **options)
    return d, backend.ops[EXPERTS](d, e.w1, e.w2, clamp=clamp, cast=cast)


def expected_rows(
    e: Experts, x: Tensor, idx: Tensor, weight: Tensor, clamp: float = 10.0, cast: tuple[str, int, str] | None = Q8
) -> list[dict[int, Tensor]]:
    values = x.double() if cast is None else formats.cast(x, *cast).values
    return [
        {
            i: reference.expert(values[t : t + 1], w, e.up[i], e.down[i], clamp, cast)[0]
            for i, w in ((int(idx[t, c]), weight[t, c : c + 1]) for c in range(idx.shape[1]))
            if i >= 0
        }
        for t in range(len(x))
    ]


@pytest.mark.op(EXPERTS)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("load", ["spread", "an expert without rows", "one token", "no token", "masked rows"])
@pytest.mark.parametrize("width", [64, 128])
def test_experts_equal_fp64_with_the_roundings_of_a_step(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, load: str, width: int
) -> None:
    e = make_experts(backend, device, generator, hidden=width, inner=width)
    idx, weight = choices(LOADS[load])
    x = samples.normal(generator, len(idx), width)
    d, y = run_experts(backend, device, e, x, idx, weight)
    expected = expected_rows(e, x, idx, weight)
    order = places(d, idx, weight)
    true = [expected[t][int(idx[t, c])] for _, t, c in order]
    require(y.dtype == torch.bfloat16, f"{EXPERTS}: dtype of the result", op=EXPERTS, got=y.dtype)
    if true:
        tolerance(EXPERTS)(rows_of(y, order), torch.stack(true), rows=True, case=load)
    require_equal(y.shape[0], len(d.weight), f"{EXPERTS}: number of rows", op=EXPERTS, case=load)


@pytest.mark.op(EXPERTS)
@pytest.mark.parametrize("clamp", [0.0, 0.5, 10.0])
@pytest.mark.parametrize(("hidden", "inner"), [(32, 96), (256, 64), (96, 32)])
def test_experts_clamp_gate_and_up(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, clamp: float, hidden: int, inner: int
) -> None:
    """Tokens so large that either limit is passed, on both sides."""
    e = make_experts(backend, device, generator, hidden=hidden, inner=inner)
    idx, weight = choices([[t % 4] for t in range(20)])
    x = samples.normal(generator, 20, hidden, scale=4.0)
    d, y = run_experts(backend, device, e, x, idx, weight, clamp)
    expected = expected_rows(e, x, idx, weight, clamp)
    order = places(d, idx, weight)
    true = [expected[t][int(idx[t, c])] for _, t, c in order]
    tolerance(EXPERTS)(rows_of(y, order), torch.stack(true), rows=True)


@pytest.mark.op(EXPERTS)
def test_experts_without_a_cast_round_nothing(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    if "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    e = make_experts(backend, device, generator)
    idx, weight = choices(LOADS["spread"])
    x = samples.normal(generator, len(idx), 64, dtype=torch.float32)
    d, y = run_experts(backend, device, e, x, idx, weight, cast=None)
    expected = expected_rows(e, x, idx, weight, cast=None)
    order = places(d, idx, weight)
    true = [expected[t][int(idx[t, c])] for _, t, c in order]
    require(y.dtype == torch.float32, f"{EXPERTS}: dtype of the result", op=EXPERTS, got=y.dtype)
    tolerance(EXPERTS)(rows_of(y, order), torch.stack(true), rows=True)


@pytest.mark.op(EXPERTS, DISPATCH, COMBINE)
@pytest.mark.parametrize("align", [1, 8, 128])
def test_layer_of_experts_equals_the_loop(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, align: int
) -> None:
    e = make_experts(backend, device, generator)
    idx, weight = choices(LOADS["spread"] + LOADS["masked rows"] + LOADS["an expert without rows"])
    x, bias = samples.normal(generator, len(idx), 64), samples.normal(generator, len(idx), 64)
    d, y = run_experts(backend, device, e, x, idx, weight, align=align)
    got = backend.ops[COMBINE](y, d.handle, bias=bias.to(device))
    expected = reference.combine(expected_rows(e, x, idx, weight), 64, bias)
    tolerance(EXPERTS)(got, expected, rows=True)


@pytest.mark.op(EXPERTS, DISPATCH, COMBINE)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("hidden", [64, 1024])
def test_layer_of_experts_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, hidden: int
) -> None:
    e = make_experts(backend, device, generator, hidden=hidden)
    idx = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(45)])
    weight, x = torch.rand(45, 2, generator=generator), samples.normal(generator, 45, hidden)

    def run(rows: Tensor) -> Tensor:
        d, y = run_experts(backend, device, e, x[rows], idx[rows], weight[rows])
        combined: Tensor = backend.ops[COMBINE](y, d.handle)
        return combined

    require_row_invariant(EXPERTS, run, 45, generator)


@pytest.mark.op(EXPERTS, COMBINE, SWIGLU)
def test_layer_of_experts_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator) -> None:
    e = make_experts(backend, device, generator)
    idx, weight = choices(LOADS["spread"])
    x = samples.normal(generator, len(idx), 64)

    def layer(x: Tensor) -> Tensor:
        d, y = run_experts(backend, device, e, x, idx, weight)
        combined: Tensor = backend.ops[COMBINE](y, d.handle)
        return combined

    run_twice(layer, x, op=EXPERTS)
    run_twice(backend.ops[SWIGLU], samples.normal(generator, 9, 128).to(device), op=SWIGLU, clamp=10.0, cast=Q8)


@pytest.mark.op(EXPERTS, DISPATCH, COMBINE)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(12))
def test_layer_of_experts_of_random_shapes_equals_the_loop(
    backend: Backend, device: Any, tolerance: Any, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=g))

    count, hidden, inner, tokens = draw(2, 9), 32 * draw(1, 9), 32 * draw(1, 6), draw(1, 60)
    e = make_experts(backend, device, g, hidden=hidden, inner=inner, count=count)
    idx = torch.stack([torch.randperm(count, generator=g)[:2] for _ in range(tokens)])
    idx[torch.rand(tokens, generator=g) < 0.2] = -1
    weight, x = torch.rand(tokens, 2, generator=g).masked_fill(idx < 0, 0.0), samples.normal(g, tokens, hidden)
    d, y = run_experts(backend, device, e, x, idx, weight)
    expected = reference.combine(expected_rows(e, x, idx, weight), hidden)
    tolerance(EXPERTS)(backend.ops[COMBINE](y, d.handle), expected, rows=True, seed=seed)


@pytest.mark.op(MEGA)
@pytest.mark.needs("op:moe.mega")
@pytest.mark.parametrize("load", ["spread", "masked rows", "one token"])
def test_mega_equals_the_loop(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, load: str
) -> None:
    """``w`` is the pair of stacks that ``moe.experts`` takes."""
    e = make_experts(backend, device, generator)
    idx, weight = choices(LOADS[load])
    x = samples.normal(generator, len(idx), 64)
    given = backend.ops["quant.cast_per_token"](x.to(device))
    got = backend.ops[MEGA](given, idx.to(device), weight.to(device), (e.w1, e.w2), clamp=10.0)
    tolerance(MEGA)(got, reference.combine(expected_rows(e, x, idx, weight), 64), rows=True, case=load)
