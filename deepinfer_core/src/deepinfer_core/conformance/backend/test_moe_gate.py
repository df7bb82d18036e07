"""``moe.gate``: which experts, and their weights, against a sort of Python numbers.

Logits are exact in fp32 whatever the order of the sum (small integers times multiples of 1/64), so the classes of
``spec/kernels.md`` 2.7 "given equal logits" apply, and a tie is a tie on every backend.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_row_invariant, require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import moe as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.repeats import run_twice
from deepinfer_core.interfaces import Backend

GATE = "moe.gate"
pytestmark = pytest.mark.op(GATE)


def rows_of(g: torch.Generator, tokens: int, width: int) -> Tensor:
    return torch.randint(-3, 4, (tokens, width), generator=g).bfloat16()


def router_of(g: torch.Generator, experts: int, width: int) -> Tensor:
    return (torch.randint(-64, 65, (experts, width), generator=g) / 64 * (16 / width)).bfloat16()


def prepared(backend: Backend, device: Any, w: Tensor) -> Any:
    return backend.ops["quant.prepare_weight"]("gate", w.to(device))


def require_choice(
    tolerance: Any, result: tuple[Tensor, Tensor], plain: Tensor, bias: Tensor, k: int, scale: float, **facts: Any
) -> None:
    """The right experts (at the cut 1e-4 apart, or tied exactly), and the weights that belong to them."""
    idx, weight = (part.cpu() for part in result)
    require((idx.dtype, weight.dtype) == (torch.int64, torch.float32), f"{GATE}: dtypes", op=GATE, got=idx.dtype)
    ranked = plain + bias.double()
    tolerance(GATE)(idx, reference.choose(plain, bias, k), keys=ranked, **facts)
    tolerance(GATE, output="weights")(weight, reference.weights(plain, idx, scale), rows=True, **facts)


def clear_rows(x: Tensor, w: Tensor, bias: Tensor, k: int, temperature: float = 1.0) -> Tensor:
    """The rows of ``x`` whose k-th and next best expert differ by more than any rounding."""
    ranked = (reference.scores(x, w, temperature) + bias.double()).sort(dim=1, descending=True).values
    if k == ranked.shape[1]:
        return x
    return x[(ranked[:, k - 1] - ranked[:, k]) > 1e-4]


@pytest.mark.level("smoke")
@pytest.mark.parametrize(("experts", "k"), [(8, 2), (4, 2), (384, 6), (5, 5), (3, 1)])
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_gate_chooses_by_biased_score_and_weighs_by_the_plain_one(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, experts: int, k: int, tokens: int
) -> None:
    w, bias = router_of(generator, experts, 64), torch.rand(experts, generator=generator) - 0.5
    x = clear_rows(rows_of(generator, 4 * tokens, 64), w, bias, k)[:tokens]
    result = backend.ops[GATE](x.to(device), prepared(backend, device, w), bias.to(device), k=k, scale=1.5)
    require_choice(tolerance, result, reference.scores(x, w), bias, k, 1.5)


@pytest.mark.parametrize("width", [32, 256, 1024])
@pytest.mark.parametrize("temperature", [0.5, 0.7, 3.0])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_gate_divides_logits_by_the_temperature(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator,
    width: int, temperature: float, scale: float,
) -> None:  # fmt: skip
    w, bias = router_of(generator, 16, width), torch.rand(16, generator=generator) - 0.5
    x = clear_rows(rows_of(generator, 90, width), w, bias, 4, temperature)[:65]
    given = prepared(backend, device, w)
    result = backend.ops[GATE](x.to(device), given, bias.to(device), k=4, scale=scale, temperature=temperature)
    require_choice(tolerance, result, reference.scores(x, w, temperature), bias, 4, scale)


@pytest.mark.parametrize("size", [4.0, 100.0])
def test_gate_with_large_biases_keeps_them_out_of_the_weights(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, size: float
) -> None:
    w, bias = router_of(generator, 12, 64), (torch.rand(12, generator=generator) - 0.5) * size
    x = clear_rows(rows_of(generator, 40, 64), w, bias, 3)
    result = backend.ops[GATE](x.to(device), prepared(backend, device, w), bias.to(device), k=3, scale=1.0)
    require_choice(tolerance, result, reference.scores(x, w), bias, 3, 1.0)


@pytest.mark.parametrize("pattern", [[True, False], [False], [True]], ids=["some", "none", "all"])
def test_gate_uses_the_other_bias_on_image_rows(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, pattern: list[bool]
) -> None:
    w = router_of(generator, 12, 64)
    biases = (torch.rand(2, 12, generator=generator) - 0.5) * 4
    x = clear_rows(clear_rows(rows_of(generator, 60, 64), w, biases[0], 3), w, biases[1], 3)[:20]
    image = torch.tensor((pattern * 20)[: len(x)])
    result = backend.ops[GATE](
        x.to(device), prepared(backend, device, w), biases[0].to(device), k=3, scale=1.5,
        bias_image=biases[1].to(device), image_rows=image.to(device),
    )  # fmt: skip
    require_choice(tolerance, result, reference.scores(x, w), biases[image.long()], 3, 1.5)


@pytest.mark.level("smoke")
def test_gate_of_equal_scores_takes_the_lower_ids(backend: Backend, device: Any, generator: torch.Generator) -> None:
    """Strictly: exact ties are no matter of rounding (``spec/model.md`` 2.9)."""
    cases: list[tuple[str, Tensor, list[float], int, list[int]]] = [
        ("all equal", torch.zeros(16, 32), [0.0] * 16, 4, [0, 1, 2, 3]),
        ("equal behind a better one", torch.zeros(16, 32), [0.0] * 9 + [1.0] + [0.0] * 6, 4, [0, 1, 2, 9]),
        ("last two of three equal ones", torch.zeros(8, 32), [2.0, 0, 0, 1.0, 0, 1.0, 0, 1.0], 3, [0, 3, 5]),
        ("all negative", torch.zeros(6, 32), [-1.0, -3.0, -2.0, -1.0, -2.0, -1.0], 4, [0, 2, 3, 5]),
    ]
    for tokens in (1, 7):
        for case, w, bias, k, expected in cases:
            given = prepared(backend, device, w.bfloat16())
            x = rows_of(generator, tokens, 32).to(device)
            idx, _ = backend.ops[GATE](x, given, torch.tensor(bias, device=device), k=k, scale=1.0)
            got = idx.sort(dim=1).values.tolist()
            require(got == [expected] * tokens, f"{GATE}: a tie", op=GATE, case=case, got=got[0], expected=expected)


def test_gate_of_twin_experts_at_the_cut_takes_the_lower_id(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    """Two experts with the same row of the router, the k-th and the next: in any row the higher id must not win."""
    w = router_of(generator, 24, 64)
    w[17] = w[4]
    bias = torch.rand(24, generator=generator) * 0.1
    bias[17] = bias[4]
    x = rows_of(generator, 300, 64)
    idx, _ = backend.ops[GATE](x.to(device), prepared(backend, device, w), bias.to(device), k=6, scale=1.0)
    higher, lower = ((idx.cpu() == e).any(1) for e in (17, 4))
    require(bool((higher <= lower).all()), f"{GATE}: the twin of higher id was chosen alone", op=GATE,
            worst=int((higher & ~lower).int().argmax()))  # fmt: skip
    require(bool((lower & ~higher).any()), f"{GATE}: no row decides between the twins", op=GATE)


@pytest.mark.parametrize("logit", [-80.0, -20.0, 0.0, 19.0, 20.0, 21.0, 100.0, 30000.0])
def test_gate_of_extreme_logits_is_precise(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator, logit: float
) -> None:
    """Expert e has the logit times (1 - e / 8): around 20 softplus becomes linear, far below it is an exponential."""
    w = torch.zeros(8, 32)
    w[:, 0] = torch.tensor([1 - e / 8 for e in range(8)])
    x = torch.zeros(3, 32)
    x[:, 0] = logit
    x, w, bias = x.bfloat16(), w.bfloat16(), torch.zeros(8)
    for k in (2, 8):
        result = backend.ops[GATE](x.to(device), prepared(backend, device, w), bias.to(device), k=k, scale=1.5)
        require_choice(tolerance, result, reference.scores(x, w), bias, k, 1.5, case=f"logit {logit}, k {k}")


@pytest.mark.parametrize("pattern", [[True, False, True], [False], [True]], ids=["some", "all", "none"])
def test_gate_of_masked_rows_gives_no_experts(
    backend: Backend, device: Any, generator: torch.Generator, pattern: list[bool]
) -> None:
    w, bias = prepared(backend, device, router_of(generator, 8, 64)), torch.rand(8, generator=generator).to(device)
    x, mask = rows_of(generator, 12, 64).to(device), torch.tensor((pattern * 12)[:12], device=device)
    plain = backend.ops[GATE](x, w, bias, k=3, scale=1.5)
    idx, weight = backend.ops[GATE](x, w, bias, k=3, scale=1.5, mask=mask)
    require(bool((idx[~mask] == -1).all()), f"{GATE}: a masked row has experts", op=GATE)
    require(not bool(weight[~mask].any()), f"{GATE}: a masked row has weights", op=GATE)
    require_same_bytes(idx[mask], plain[0][mask], f"{GATE}: a row beside masked ones", op=GATE)
    require_same_bytes(weight[mask], plain[1][mask], f"{GATE}: weights beside masked rows", op=GATE)


def test_gate_of_a_broken_row_spares_the_others(backend: Backend, device: Any, generator: torch.Generator) -> None:
    w, bias = prepared(backend, device, router_of(generator, 8, 64)), torch.zeros(8, device=device)
    x = rows_of(generator, 5, 64).to(device)
    clean = backend.ops[GATE](x, w, bias, k=3, scale=1.5)
    x[2, 5] = float("nan")
    idx, weight = backend.ops[GATE](x, w, bias, k=3, scale=1.5)
    require(bool(((idx[2] >= -1) & (idx[2] < 8)).all()), f"{GATE}: a broken row names no expert", op=GATE,
            got=idx[2].tolist())  # fmt: skip
    require(not bool(weight[2].isfinite().any()), f"{GATE}: a broken row has weights", op=GATE, got=weight[2].tolist())
    others = torch.tensor([0, 1, 3, 4], device=device)
    for got, expected in zip((idx, weight), clean, strict=True):
        require_same_bytes(got[others], expected[others], f"{GATE}: a broken row reached others", op=GATE)


def test_gate_of_strided_rows_and_twice_gives_the_same_bits(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    w, bias = prepared(backend, device, router_of(generator, 16, 64)), torch.rand(16, generator=generator).to(device)
    x = samples.normal(generator, 33, 64).to(device)
    idx, weight = run_twice(lambda x: backend.ops[GATE](x, w, bias, k=4, scale=1.5), x, op=GATE)
    strided = backend.ops[GATE](samples.strided(x), w, bias, k=4, scale=1.5)
    require_same_bytes(strided[0], idx, f"{GATE}: strided rows", op=GATE)
    require_same_bytes(strided[1], weight, f"{GATE}: weights of strided rows", op=GATE)


@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize(("experts", "width"), [(8, 64), (48, 1024)])
def test_gate_of_a_row_does_not_depend_on_its_batch(
    backend: Backend, device: Any, generator: torch.Generator, experts: int, width: int
) -> None:
    w = prepared(backend, device, samples.normal(generator, experts, width, scale=width**-0.5))
    x, bias = samples.normal(generator, 65, width).to(device), torch.rand(experts, generator=generator).to(device)

    def run(rows: Tensor) -> Tensor:
        """Ids and weights side by side; small ids are exact in fp32."""
        idx, weight = backend.ops[GATE](x[rows.to(device)], w, bias, k=3, scale=1.5)
        return torch.cat([idx.float(), weight], dim=1)

    require_row_invariant(GATE, run, 65, generator)


@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(16))
def test_gate_of_random_shapes_equals_the_reference(backend: Backend, device: Any, tolerance: Any, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=g))

    experts, width = draw(2, 400), 32 * draw(1, 33)
    k, scale = draw(1, min(experts, 9)), draw(1, 9) / 4
    w, bias = router_of(g, experts, width), torch.rand(experts, generator=g) - 0.5
    x = clear_rows(rows_of(g, draw(1, 100), width), w, bias, k)
    result = backend.ops[GATE](x.to(device), prepared(backend, device, w), bias.to(device), k=k, scale=scale)
    require_choice(tolerance, result, reference.scores(x, w), bias, k, scale, seed=seed)


def test_gate_of_what_does_not_fit_is_refused(backend: Backend, device: Any, generator: torch.Generator) -> None:
    w, bias = prepared(backend, device, router_of(generator, 8, 64)), torch.zeros(8, device=device)
    x = rows_of(generator, 5, 64).to(device)
    flags = torch.ones(5, dtype=torch.bool, device=device)
    for case, arguments, options in (
        ("another width", (x[:, :32].contiguous(), w, bias), {}),
        ("one dimension", (x[0], w, bias), {}),
        ("integers", (x.int(), w, bias), {}),
        ("a bias of fewer experts", (x, w, bias[:7]), {}),
        ("a bias of one number", (x, w, bias[:1]), {}),
        ("more experts than there are", (x, w, bias), {"k": 9}),
        ("no experts", (x, w, bias), {"k": 0}),
        ("temperature 0", (x, w, bias), {"temperature": 0.0}),
        ("a mask of fewer rows", (x, w, bias), {"mask": flags[:4]}),
        ("a mask of one row", (x, w, bias), {"mask": flags[:1]}),
        ("a mask of numbers", (x, w, bias), {"mask": flags.float()}),
        ("image rows without their bias", (x, w, bias), {"image_rows": flags}),
        ("image rows of one row", (x, w, bias), {"image_rows": flags[:1], "bias_image": bias}),
        ("an image bias of fewer experts", (x, w, bias), {"image_rows": flags, "bias_image": bias[:7]}),
    ):
        require_refused(backend.ops, GATE, case, *arguments, **{"k": 2, "scale": 1.0, **options})
