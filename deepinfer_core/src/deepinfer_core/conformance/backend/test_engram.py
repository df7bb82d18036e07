"""``engram.*``: hashes against Python integers, table rows byte by byte, and the gate against fp64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.reference import engram as reference
from deepinfer_core.conformance.reference import formats
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

HASH, PREPARE, FETCH = "engram.hash", "engram.prepare", "engram.fetch"
GATE, PREPARE_GATE = "engram.gate", "engram.prepare_gate"
EPS = 1e-20
GOLDEN_MULTIPLIERS = {
    1: [76632096046245, 4839876093313, 35959672319349, 73987337458391],
    14: [67716810739261, 51510806800915, 30921347202721, 82619226485591],
}
GOLDEN_ROWS = {
    1: [3889985, 118891433, 135651701, 242768209, 262824918, 383472506],
    14: [897380, 120779290, 135625108, 250471486, 257776741, 368333250],
}
"""``spec/model.md`` 9: rows of (n, head) = (2,0) (2,7) (3,0) (3,7) (4,0) (4,7) for the ids 5, 17, 300, 99091."""


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in itertools.takewhile(lambda d: d * d <= n, itertools.count(2)))


def bucket_primes(start: int, layers: int, orders: int, heads: int) -> list[list[int]]:
    """Primes of each layer, order-major: for each order the smallest unseen ones from ``start`` (``spec/model.md``
    2.3)."""
    seen: set[int] = set()
    result = []
    for _ in range(layers):
        row = []
        for _ in range(orders):
            current = start - 1
            for _ in range(heads):
                current += 1
                while current in seen or not is_prime(current):
                    current += 1
                seen.add(current)
                row.append(current)
        result.append(row)
    return result


def prefix_sums(primes: list[int]) -> list[int]:
    return [sum(primes[:i]) for i in range(len(primes))]


def hash_on(
    backend: Backend, device: Any, ids: Tensor, multipliers: list[int], primes: list[int], offsets: list[int]
) -> Tensor:
    numbers = (torch.tensor(v, dtype=torch.int64, device=device) for v in (multipliers, primes, offsets))
    rows: Tensor = backend.ops[HASH](ids.to(device), *numbers)
    require(rows.dtype == torch.int64, f"{HASH}: dtype", op=HASH, got=rows.dtype)
    return rows.cpu()


@pytest.mark.op(HASH)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("layer", "place"), [(1, 0), (14, 1)])
def test_hash_gives_the_golden_rows(backend: Backend, device: Any, layer: int, place: int) -> None:
    primes = bucket_primes(16_000_000, 2, 3, 8)[place]
    ids = torch.tensor([[5, 17, 300, 99091]], dtype=torch.int32)
    rows = hash_on(backend, device, ids, GOLDEN_MULTIPLIERS[layer], primes, prefix_sums(primes))
    got = rows[0, [0, 7, 8, 15, 16, 23]].tolist()
    require_equal(got, GOLDEN_ROWS[layer], f"{HASH}: golden rows", op=HASH, case=f"layer {layer}")


@pytest.mark.op(HASH)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("tokens", [0, 1, 7, 130])
@pytest.mark.parametrize(("grams", "heads"), [(4, 2), (4, 8), (2, 1), (3, 5)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_hash_equals_python_integers(
    backend: Backend, device: Any, generator: torch.Generator, tokens: int, grams: int, heads: int, dtype: torch.dtype
) -> None:
    """Products reach the top of int64; ids 0 and the largest of a vocabulary occur in every column."""
    ids = torch.randint(0, 99092, (tokens, grams), generator=generator)
    ids[::3, 0], ids[1::3, -1] = 0, 99091
    multipliers = [
        int(v) * 2 + 1 for v in torch.randint(2**44, (2**63 - 1) // 99092 // 2, (grams,), generator=generator)
    ]
    primes = bucket_primes(600, 1, grams - 1, heads)[0]
    offsets = prefix_sums(primes)
    rows = hash_on(backend, device, ids.to(dtype), multipliers, primes, offsets)
    expected = torch.tensor(reference.hash_rows(ids.tolist(), multipliers, primes, offsets), dtype=torch.int64)
    require_same_bytes(rows, expected.view(tokens, (grams - 1) * heads), HASH, op=HASH)


def table(g: torch.Generator, rows: int, width: int) -> tuple[Tensor, Tensor]:
    weight, _ = samples.fp8_weight(g, rows, width)
    return weight, torch.randint(100, 150, (rows, width // 32), generator=g, dtype=torch.uint8)


def table_values(weight: Tensor, scale: Tensor) -> Tensor:
    return formats.decode(weight.view(torch.uint8), scale, "e4m3", 32, "ue8m0")


@pytest.mark.op(FETCH, PREPARE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("tokens", "columns", "width"), [(7, 6, 32), (0, 6, 32), (1, 24, 256), (65, 3, 64)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_fetch_dequantises_rows_side_by_side(
    backend: Backend, device: Any, generator: torch.Generator, tokens: int, columns: int, width: int, dtype: torch.dtype
) -> None:
    weight, scale = table(generator, 100, width)
    rows = torch.randint(0, 100, (tokens, columns), generator=generator)
    rows[::4, 0], rows[1::4, -1] = 0, 99
    prepared = backend.ops[PREPARE](weight.to(device), scale.to(device))
    got = backend.ops[FETCH](rows.to(device), prepared, dtype=dtype)
    expected = table_values(weight, scale)[rows].reshape(tokens, columns * width).to(dtype)
    require_same_bytes(got.cpu() + 0.0, expected + 0.0, FETCH, op=FETCH)
    require(backend.ops[FETCH](rows.to(device), prepared).dtype == torch.bfloat16, f"{FETCH}: default", op=FETCH)


@pytest.mark.op(FETCH, PREPARE)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_fetch_of_a_plain_table_gives_its_rows(
    backend: Backend, device: Any, generator: torch.Generator, dtype: torch.dtype
) -> None:
    weight = samples.normal(generator, 50, 32, dtype=dtype)
    rows = torch.randint(0, 50, (6, 4), generator=generator)
    got = backend.ops[FETCH](rows.to(device), backend.ops[PREPARE](weight.to(device)))
    require_same_bytes(got.cpu(), weight[rows].reshape(6, 128).bfloat16(), FETCH, op=FETCH)


@pytest.mark.op(FETCH, PREPARE)
def test_fetch_of_every_code_and_scale_is_exact(backend: Backend, device: Any) -> None:
    """All 254 finite codes; scales up to the ends of what bf16 holds."""
    codes = torch.arange(256, dtype=torch.uint8).view(8, 32)
    codes[codes & 0x7F == 0x7F] = 0
    weight, scale = codes.view(torch.float8_e4m3fn), torch.tensor([[1], [20], [64], [127], [128], [200], [240], [245]])
    prepared = backend.ops[PREPARE](weight.to(device), scale.to(torch.uint8).to(device))
    got = backend.ops[FETCH](torch.arange(8, device=device).view(8, 1), prepared, dtype=torch.float32)
    require_same_bytes(got.cpu() + 0.0, table_values(weight, scale).float() + 0.0, FETCH, op=FETCH)


def gate_inputs(g: torch.Generator, tokens: int, c: int, width: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x, kv and the norm weights of streams and keys. Values weigh as much as streams, so that the gate shows."""
    x, kv = samples.normal(g, tokens, c, width), samples.normal(g, tokens, (c + 1) * width, scale=2.0)
    return x, kv, samples.normal(g, c, width), samples.normal(g, c, width)


def require_gate(
    backend: Backend, device: Any, tolerance: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor],
    mask: Tensor | None = None, eps: float = EPS,
) -> None:  # fmt: skip
    x, kv, q_weight, k_weight = inputs
    params = backend.ops[PREPARE_GATE](q_weight.to(device), k_weight.to(device), norm_eps=eps)
    given = x.to(device)
    got = backend.ops[GATE](given, kv.to(device), params, mask=None if mask is None else mask.to(device))
    require_same_bytes(given.cpu(), x, f"{GATE}: its input was changed", op=GATE)
    require(got.dtype == x.dtype, f"{GATE}: dtype of the streams", op=GATE, got=got.dtype)
    expected = reference.gate(x, kv, q_weight.double() * k_weight.double(), eps, mask)
    tolerance(GATE)(got, expected, rows=True)


@pytest.mark.op(GATE, PREPARE_GATE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("tokens", "c", "width"), [(7, 4, 64), (0, 4, 64), (1, 4, 256), (65, 3, 96), (5, 1, 32)])
def test_gate_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, tokens: int, c: int, width: int
) -> None:
    require_gate(backend, device, tolerance, gate_inputs(generator, tokens, c, width))


@pytest.mark.op(GATE)
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("width", [64, 256])
def test_gate_of_masked_rows_leaves_them_as_they_are(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, share: float, width: int
) -> None:
    inputs = gate_inputs(generator, 12, 4, width)
    mask = torch.rand(12, generator=generator) >= share
    require_gate(backend, device, tolerance, inputs, mask)
    x, kv, q_weight, k_weight = inputs
    params = backend.ops[PREPARE_GATE](q_weight.to(device), k_weight.to(device))
    got = backend.ops[GATE](x.to(device), kv.to(device), params, mask=mask.to(device))
    require_same_bytes(got.cpu()[~mask], x[~mask], f"{GATE}: a masked row changed", op=GATE)


@pytest.mark.op(GATE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(
    ("d", "expected"), [(0.0, 0.5002500), (1e-8, 0.5002500), (0.04, 0.5498340), (-0.25, 0.3775407), (4.0, 0.8807971)]
)
def test_gate_of_a_dot_product_is_the_golden_one(
    backend: Backend, device: Any, tolerance: Any, d: float, expected: float
) -> None:
    """x and k are all ones, so d is the one weight over the root of the width; v is so large that g alone shows."""
    width = 64
    x, kv = torch.ones(1, 1, width), torch.cat([torch.ones(1, width), torch.full((1, width), 2.0**20)], dim=1)
    weight = torch.zeros(1, width)
    weight[0, 3] = d * width**0.5
    params = backend.ops[PREPARE_GATE](weight.to(device), torch.ones(1, width, device=device))
    got = backend.ops[GATE](x.bfloat16().to(device), kv.bfloat16().to(device), params)
    tolerance(GATE)(
        got, torch.full((1, 1, width), 1 + expected * 2.0**20, dtype=torch.float64), rows=True, case=f"d={d}"
    )


@pytest.mark.op(GATE)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_gate_of_small_dot_products_keeps_floor_and_sign(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, sign: float
) -> None:
    """In fp32, where the difference of gates near 1/2 is not lost: x + g v with v = -2 x leaves (1 - 2 g) x."""
    if "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    x = samples.normal(generator, 8, 1, 64, dtype=torch.float32)
    kv = torch.cat([x[:, 0], -2 * x[:, 0]], dim=1)
    for size in (1e-9, 1e-7, 1e-5, 1e-3):
        weight = torch.full((1, 64), sign * size)
        require_gate(backend, device, tolerance, (x, kv, weight, torch.ones(1, 64)))


@pytest.mark.op(GATE, PREPARE_GATE)
@pytest.mark.parametrize("eps", [1e-6, 0.5, 4.0])
def test_gate_uses_the_eps_it_was_prepared_with(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, eps: float
) -> None:
    x, kv, q_weight, k_weight = gate_inputs(generator, 9, 4, 64)
    require_gate(backend, device, tolerance, (x, kv, q_weight * 4, k_weight * 4), eps=eps)


@pytest.mark.op(GATE)
def test_gate_of_zero_streams_or_zero_keys_is_finite(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    x, kv, q_weight, k_weight = gate_inputs(generator, 4, 4, 64)
    x[1], kv[2] = 0, 0
    require_gate(backend, device, tolerance, (x, kv, q_weight, k_weight))


@pytest.mark.op(GATE)
def test_gate_of_a_broken_row_spares_the_others(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, kv, q_weight, k_weight = (t.to(device) for t in gate_inputs(generator, 5, 4, 64))
    params = backend.ops[PREPARE_GATE](q_weight, k_weight)
    clean = backend.ops[GATE](x, kv, params)
    x[2, 1, 3] = float("nan")
    broken = backend.ops[GATE](x, kv, params)
    require(bool(broken[2, 1].isnan().all()), f"{GATE}: a broken stream became finite", op=GATE)
    others = torch.tensor([0, 1, 3, 4], device=device)
    require_same_bytes(broken[others], clean[others], f"{GATE}: a broken row reached others", op=GATE)


@pytest.mark.op(GATE, HASH, FETCH)
def test_engram_twice_gives_the_same_bits(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, kv, q_weight, k_weight = (t.to(device) for t in gate_inputs(generator, 11, 4, 320))
    params = backend.ops[PREPARE_GATE](q_weight, k_weight)
    run_twice(lambda x, kv: backend.ops[GATE](x, kv, params), x, kv, op=GATE)
    prepared = backend.ops[PREPARE](*(t.to(device) for t in table(generator, 40, 64)))
    rows = torch.randint(0, 40, (9, 6), generator=generator).to(device)
    run_twice(lambda rows: backend.ops[FETCH](rows, prepared), rows, op=FETCH)


@pytest.mark.op(GATE)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("width", [64, 320])
def test_gate_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, width: int
) -> None:
    x, kv, q_weight, k_weight = (t.to(device) for t in gate_inputs(generator, 37, 4, width))
    params = backend.ops[PREPARE_GATE](q_weight, k_weight)

    def run(rows: Tensor) -> Tensor:
        rows = rows.to(device)
        y: Tensor = backend.ops[GATE](x[rows], kv[rows], params)
        return y

    require_row_invariant(GATE, run, 37, generator)


@pytest.mark.op(GATE, HASH)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(16))
def test_engram_of_random_shapes_equals_the_reference(backend: Backend, device: Any, tolerance: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    tokens, width = int(torch.randint(1, 130, (1,), generator=g)), 32 * int(torch.randint(1, 30, (1,), generator=g))
    mask = torch.rand(tokens, generator=g) < 0.8
    require_gate(backend, device, tolerance, gate_inputs(g, tokens, 4, width), mask, eps=10.0 ** -(seed % 7 * 3))
    ids = torch.randint(0, 99092, (tokens, 4), generator=g)
    primes = bucket_primes(16_000_000 if seed % 8 == 0 else 97 + seed, 1, 3, 8)[0]
    multipliers = GOLDEN_MULTIPLIERS[14 if seed % 2 else 1]
    rows = hash_on(backend, device, ids, multipliers, primes, prefix_sums(primes))
    expected = torch.tensor(reference.hash_rows(ids.tolist(), multipliers, primes, prefix_sums(primes)))
    require_same_bytes(rows, expected, HASH, op=HASH, seed=seed)


@pytest.mark.op(HASH, PREPARE, FETCH, PREPARE_GATE, GATE)
def test_engram_of_what_does_not_fit_is_refused(backend: Backend, device: Any, generator: torch.Generator) -> None:
    ids = torch.ones(3, 4, dtype=torch.int32, device=device)
    four, six = (torch.arange(1, n + 1, device=device) for n in (4, 6))
    weight, scale = (t.to(device) for t in table(generator, 20, 64))
    prepared = backend.ops[PREPARE](weight, scale)
    x, kv, q_weight, k_weight = (t.to(device) for t in gate_inputs(generator, 3, 4, 64))
    params = backend.ops[PREPARE_GATE](q_weight, k_weight)
    mask = torch.ones(3, dtype=torch.bool, device=device)
    for case, op, arguments, options in (
        ("fewer multipliers than ids", HASH, (ids, four[:3], six, six), {}),
        ("windows of one id", HASH, (ids[:, :1], four[:1], six, six), {}),
        ("primes that orders do not divide", HASH, (ids, four, six[:5], six[:5]), {}),
        ("fewer offsets than primes", HASH, (ids, four, six, six[:3]), {}),
        ("ids that are no integers", HASH, (ids.float(), four, six, six), {}),
        ("one dimension", HASH, (ids[0], four, six, six), {}),
        ("multipliers of int32", HASH, (ids, four.int(), six, six), {}),
        ("codes without scales", PREPARE, (weight,), {}),
        ("scales of other rows", PREPARE, (weight, scale[:-1]), {}),
        ("scales of other groups", PREPARE, (weight, scale[:, :1]), {}),
        ("a table of one dimension", PREPARE, (weight[0], scale[0]), {}),
        ("a plain table with scales", PREPARE, (weight.to(torch.bfloat16), scale), {}),
        ("a table of integers", PREPARE, (torch.ones(4, 4, dtype=torch.int64, device=device),), {}),
        ("rows that are no integers", FETCH, (ids.float(), prepared), {}),
        ("rows of one dimension", FETCH, (ids[0].long(), prepared), {}),
        ("values as integers", FETCH, (ids.long(), prepared), {"dtype": torch.int32}),
        ("norm weights of two shapes", PREPARE_GATE, (q_weight, k_weight[:1]), {}),
        ("norm weights of one dimension", PREPARE_GATE, (q_weight[0], k_weight[0]), {}),
        ("kv a stream short", GATE, (x, kv[:, : 4 * 64], params), {}),
        ("kv of fewer tokens", GATE, (x, kv[:2], params), {}),
        ("two dimensions", GATE, (x[:, 0], kv, params), {}),
        ("another number of streams", GATE, (x[:, :1].contiguous(), kv[:, : 2 * 64], params), {}),
        ("integers", GATE, (x.int(), kv, params), {}),
        ("a mask of fewer tokens", GATE, (x, kv, params), {"mask": mask[:2]}),
        ("a mask of one token", GATE, (x, kv, params), {"mask": mask[:1]}),
        ("a mask of numbers", GATE, (x, kv, params), {"mask": mask.float()}),
    ):
        require_refused(backend.ops, op, case, *arguments, **options)
