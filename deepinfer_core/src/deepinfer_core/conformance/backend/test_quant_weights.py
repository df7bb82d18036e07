"""``quant.prepare_weight``: checkpoint weights, seen through a product with the unit matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_same_bytes
from deepinfer_core.conformance.reference import quant as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.interfaces import Backend

CAST, PREPARE = "quant.cast_per_token", "quant.prepare_weight"


def through_product(backend: Backend, device: Any, weight: Any, inputs: int, quantised: bool) -> Tensor:
    """A prepared weight ``[out, in]`` as fp32, by its product with the unit matrix: one term a sum, so exact."""
    unit = torch.eye(inputs, dtype=torch.bfloat16, device=device)
    a = backend.ops[CAST](unit) if quantised else unit
    product: Tensor = backend.ops["gemm.dense"](a, weight, out_dtype=torch.float32).cpu()
    return product.t().contiguous()


def checkpoint_weight(kind: str, g: torch.Generator, outputs: int, inputs: int) -> tuple[Tensor, Tensor | None]:
    if kind == "fp8":
        return samples.fp8_weight(g, outputs, inputs)
    if kind == "fp4":
        return samples.fp4_weight(g, outputs, inputs)
    return samples.normal(g, outputs, inputs), None


def on(device: Any, pair: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None]:
    return pair[0].to(device), None if pair[1] is None else pair[1].to(device)


@pytest.mark.op(PREPARE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16"])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 64), (40, 128), (1, 32), (96, 256)])
def test_prepared_weight_has_the_values_of_the_checkpoint(
    backend: Backend, device: Any, generator: torch.Generator, kind: str, outputs: int, inputs: int
) -> None:
    pair = checkpoint_weight(kind, generator, outputs, inputs)
    weight = backend.ops[PREPARE](kind, *on(device, pair))
    got = through_product(backend, device, weight, inputs, kind != "bf16")
    expected = reference.weight_values(*pair).float()
    require_same_bytes(got + 0.0, expected + 0.0, f"{PREPARE}: values", op=PREPARE, case=kind)


@pytest.mark.op(PREPARE)
@pytest.mark.parametrize("kind", ["fp8", "fp4", "bf16"])
def test_prepared_list_is_joined_along_the_outputs(
    backend: Backend, device: Any, generator: torch.Generator, kind: str
) -> None:
    pairs = [checkpoint_weight(kind, generator, outputs, 64) for outputs in (32, 8, 64)]
    scales = None if kind == "bf16" else [on(device, p)[1] for p in pairs]
    weight = backend.ops[PREPARE](kind, [p[0].to(device) for p in pairs], scales)
    expected = torch.cat([reference.weight_values(*p) for p in pairs]).float()
    got = through_product(backend, device, weight, 64, kind != "bf16")
    require_same_bytes(got + 0.0, expected + 0.0, f"{PREPARE}: joined values", op=PREPARE, case=kind)


@pytest.mark.op(PREPARE)
def test_prepare_of_a_scale_grid_that_does_not_fit_is_refused(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    fp8, grid = on(device, samples.fp8_weight(generator, 64, 96))
    fp4, groups = on(device, samples.fp4_weight(generator, 64, 96))
    plain = samples.normal(generator, 64, 96).to(device)
    if grid is None or groups is None:
        raise TypeError("quantised samples have scales")
    cases: dict[str, tuple[Any, ...]] = {
        "fp8, transposed grid": (fp8, grid.t().contiguous()),
        "fp8, no scales": (fp8, None),
        "fp8, grid a row short": (fp8, grid[:-1]),
        "fp4, no scales": (fp4, None),
        "fp4, grid of 32x32 blocks": (fp4, grid),
        "fp4, a column short": (fp4, groups[:, :-1]),
        "int64 weight": (plain.long(), grid),
        "list, scales of one missing": ([fp8, fp8], [grid]),
    }
    for case, arguments in cases.items():
        require_refused(backend.ops, PREPARE, case, "w", *arguments)
    require_refused(backend.ops, PREPARE, "unknown use", "w", plain, None, use="sideways")
    require_refused(backend.ops, PREPARE, "heads that do not divide", "w", plain, None, use="heads:5")
    require_refused(backend.ops, PREPARE, "heads that are no number", "w", plain, None, use="heads:x")
    require_refused(backend.ops, PREPARE, "experts of two shapes", "w", [plain, plain[:32]], None, use="experts")
