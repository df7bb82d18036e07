"""``transform.*`` but ``fused``: tables against fp64, rotation and Hadamard bit by bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.bitwise import require_same_bytes
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.reference import transform as reference
from deepinfer_core.conformance.refusals import require_refused
from deepinfer_core.conformance.rotary_samples import positions_for, table_for
from deepinfer_core.interfaces import Backend

ROTARY, HADAMARD = "transform.rotary", "transform.hadamard"
TABLE, ROWS = "transform.rope_table", "transform.rope_rows"
YARN = {"factor": 16, "beta_fast": 32, "beta_slow": 1, "original_max_position_embeddings": 65536}
SHAPES = [(64, 16), (32, 16), (128, 64), (512, 64)]
"""Width of a head, and how many of its last dimensions are rotated."""


@pytest.mark.op(TABLE)
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("theta", "scaling"), [(10000.0, None), (160000.0, YARN)], ids=["plain", "yarn"])
@pytest.mark.parametrize("rotary_dim", [16, 64])
def test_rope_table_equals_fp64(
    backend: Backend, device: Any, tolerance: Any, theta: float, scaling: Any, rotary_dim: int
) -> None:
    table = backend.ops[TABLE](6000, rotary_dim, theta=theta, scaling=scaling)
    require((table.dtype, tuple(table.shape)) == (torch.float32, (6000, rotary_dim)), f"{TABLE}: shape", op=TABLE)
    positions = [0, 1, 2, 3, 255, 1023, 4095, 5999]
    tolerance(TABLE)(table[positions], reference.rope_table(positions, rotary_dim, theta, scaling))


@pytest.mark.op(TABLE)
def test_rope_table_of_a_position_and_of_none_equals_the_long_one(backend: Backend, device: Any) -> None:
    table = backend.ops[TABLE](50, 16, theta=10000.0)
    for count in (0, 1, 7):
        short = backend.ops[TABLE](count, 16, theta=10000.0)
        require_same_bytes(short, table[:count].contiguous(), f"{TABLE}: a shorter table", op=TABLE)


@pytest.mark.op(TABLE)
@pytest.mark.level("full")
def test_rope_table_far_out_rounds_the_angle_to_fp32(backend: Backend, device: Any, tolerance: Any) -> None:
    """Near position 10^5 an fp64 angle would be visibly another one (``spec/model.md`` 2.0)."""
    table = backend.ops[TABLE](100_001, 64, theta=160000.0, scaling=YARN)
    positions = list(range(99_000, 100_001, 7))
    tolerance(TABLE)(table[positions], reference.rope_table(positions, 64, 160000.0, YARN))


@pytest.mark.op(ROTARY)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("conjugate", [False, True], ids=["forward", "conjugate"])
@pytest.mark.parametrize(("width", "rotary_dim"), SHAPES)
def test_rotary_turns_adjacent_pairs_of_the_last_dimensions(
    backend: Backend, device: Any, generator: torch.Generator, width: int, rotary_dim: int, conjugate: bool
) -> None:
    table, positions = table_for(device, rotary_dim), positions_for(device, 7)
    x = samples.normal(generator, 7, 3, width)
    y = backend.ops[ROTARY](x.to(device), (table, positions, conjugate))
    expected = reference.rotary(x, table.cpu(), positions.cpu(), conjugate)
    require_same_bytes(y.cpu(), expected, f"{ROTARY}: the rotated heads", op=ROTARY)


@pytest.mark.op(ROTARY)
@pytest.mark.parametrize("tokens", [0, 1, 65])
@pytest.mark.parametrize("heads", [None, 1, 12, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_rotary_of_other_shapes_equals_the_reference(
    backend: Backend, device: Any, generator: torch.Generator, tokens: int, heads: int | None, dtype: torch.dtype
) -> None:
    if dtype == torch.float32 and "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    table, positions = table_for(device, 16), positions_for(device, tokens, torch.int64)
    shape = (tokens, 64) if heads is None else (tokens, heads, 64)
    x = samples.uneven(generator, *shape, dtype=dtype)
    y = backend.ops[ROTARY](x.to(device), (table, positions, False))
    require_same_bytes(y.cpu(), reference.rotary(x, table.cpu(), positions.cpu(), False), ROTARY, op=ROTARY)


@pytest.mark.op(ROTARY)
def test_rotary_takes_positions_of_both_widths(backend: Backend, device: Any, generator: torch.Generator) -> None:
    table, x = table_for(device, 16), samples.normal(generator, 9, 64).to(device)
    narrow = backend.ops[ROTARY](x, (table, positions_for(device, 9, torch.int32), False))
    wide = backend.ops[ROTARY](x, (table, positions_for(device, 9, torch.int64), False))
    require_same_bytes(narrow, wide, f"{ROTARY}: int32 and int64 positions", op=ROTARY)


@pytest.mark.op(ROTARY)
def test_rotary_into_out_and_into_its_input(
    backend: Backend, device: Any, generator: torch.Generator, guarded: Any
) -> None:
    table, positions = table_for(device, 16), positions_for(device, 5)
    x = samples.normal(generator, 5, 3, 64).to(device)
    kept = x.clone()
    expected = backend.ops[ROTARY](x, (table, positions, False))
    require_same_bytes(x, kept, f"{ROTARY}: its input was changed", op=ROTARY)
    out = guarded((5, 3, 64), torch.bfloat16)
    require(backend.ops[ROTARY](x, (table, positions, False), out=out) is out, f"{ROTARY}: 'out'", op=ROTARY)
    require_same_bytes(out, expected, f"{ROTARY}: the result in 'out'", op=ROTARY)
    same = guarded.of(x)
    backend.ops[ROTARY](same, (table, positions, False), out=same)
    require_same_bytes(same, expected, f"{ROTARY}: in place", op=ROTARY)


@pytest.mark.op(ROTARY)
def test_rotary_of_strided_heads_equals_that_of_contiguous_ones(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    table, positions = table_for(device, 16), positions_for(device, 5)
    x = samples.normal(generator, 5, 3, 64).to(device)
    expected = backend.ops[ROTARY](x, (table, positions, True))
    y = backend.ops[ROTARY](samples.strided(x), (table, positions, True))
    require_same_bytes(y.contiguous(), expected, f"{ROTARY}: strided heads", op=ROTARY)


@pytest.mark.op(ROTARY)
def test_rotary_forward_then_conjugate_is_the_input_within_a_rounding(
    backend: Backend, device: Any, tolerance: Any, generator: torch.Generator
) -> None:
    """Each of a pair is off by at most one bf16 rounding of the pair's length, forward and back."""
    table, positions = table_for(device, 64), positions_for(device, 40)
    x = samples.normal(generator, 40, 4, 128)
    there = backend.ops[ROTARY](x.to(device), (table, positions, False))
    back = backend.ops[ROTARY](there, (table, positions, True)).cpu().double()
    tail = x[..., 64:].double().unflatten(-1, (32, 2))
    length = tail.square().sum(-1, keepdim=True).sqrt()
    error = (back[..., 64:].unflatten(-1, (32, 2)) - tail).abs() / length
    require(bool((error <= 2.0**-7).all()), f"{ROTARY}: there and back", op=ROTARY, got=float(error.max()))


@pytest.mark.op(ROTARY, ROWS)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("conjugate", [False, True], ids=["forward", "conjugate"])
@pytest.mark.parametrize("tokens", [0, 1, 9])
def test_rope_rows_of_a_step_turn_as_the_whole_table_does(
    backend: Backend, device: Any, generator: torch.Generator, conjugate: bool, tokens: int
) -> None:
    table, x = table_for(device, 16), samples.normal(generator, tokens, 64)
    for dtype in (torch.int32, torch.int64):
        positions = positions_for(device, tokens, dtype)
        rows = backend.ops[ROWS](table, positions)
        y = backend.ops[ROTARY](x.to(device), (rows, conjugate))
        expected = reference.rotary(x, table.cpu(), positions.cpu(), conjugate)
        require_same_bytes(y.cpu(), expected, f"{ROWS}: rotation by rows of a step", op=ROWS)


@pytest.mark.op(ROWS)
def test_rope_rows_outlive_the_positions_they_were_made_of(
    backend: Backend, device: Any, generator: torch.Generator
) -> None:
    table, positions = table_for(device, 16), positions_for(device, 6)
    x = samples.normal(generator, 6, 64)
    expected = reference.rotary(x, table.cpu(), positions.cpu(), False)
    rows = backend.ops[ROWS](table, positions)
    positions.zero_()
    y = backend.ops[ROTARY](x.to(device), (rows, False))
    require_same_bytes(y.cpu(), expected, f"{ROWS}: positions changed behind the call", op=ROWS)


@pytest.mark.op(HADAMARD)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("width", [1, 2, 32, 128, 512])
def test_hadamard_adds_in_the_order_of_its_butterflies(
    backend: Backend, device: Any, generator: torch.Generator, dtype: torch.dtype, width: int
) -> None:
    if dtype == torch.float32 and "f32" not in backend.capabilities.dtypes:
        pytest.skip("not claimed: dtype f32")
    for shape in ((5, width), (3, 2, width), (0, width), (1, width)):
        x = samples.uneven(generator, *shape, dtype=dtype, octaves=6)
        for scale in (width**-0.5, 1.0, 0.25):
            y = backend.ops[HADAMARD](x.to(device), scale)
            require_same_bytes(y.cpu(), reference.hadamard(x, scale), HADAMARD, op=HADAMARD, case=f"scale {scale}")


@pytest.mark.op(HADAMARD)
def test_hadamard_of_unit_vectors_is_the_matrix(backend: Backend, device: Any) -> None:
    """Sign of (i, j): the parity of the bits that both have."""
    unit = torch.eye(64, dtype=torch.bfloat16, device=device)
    signs = torch.tensor([[(-1.0) ** bin(i & j).count("1") for j in range(64)] for i in range(64)]).bfloat16()
    require_same_bytes(backend.ops[HADAMARD](unit, 1.0).cpu(), signs, f"{HADAMARD}: the matrix", op=HADAMARD)


@pytest.mark.op(HADAMARD, ROTARY, ROWS, TABLE)
def test_transforms_that_do_not_fit_are_refused(backend: Backend, device: Any, generator: torch.Generator) -> None:
    x, table = samples.normal(generator, 4, 64).to(device), table_for(device, 16)
    positions = positions_for(device, 4)
    for case, op, arguments, options in (
        ("width 96", HADAMARD, (samples.normal(generator, 2, 96).to(device), 1.0), {}),
        ("integers", HADAMARD, (x.int(), 1.0), {}),
        ("fewer positions than tokens", ROTARY, (x, (table, positions[:3], False)), {}),
        ("one position for all", ROTARY, (x, (table, positions[:1], False)), {}),
        ("a table wider than a head", ROTARY, (x[:, :8].contiguous(), (table, positions, False)), {}),
        ("four dimensions", ROTARY, (x.view(4, 2, 2, 16), (table, positions, False)), {}),
        ("integers", ROTARY, (x.int(), (table, positions, False)), {}),
        ("out of another shape", ROTARY, (x, (table, positions, False)), {"out": x[:2].clone()}),
        ("out of another dtype", ROTARY, (x, (table, positions, False)), {"out": x.float()}),
        ("positions that are no integers", ROWS, (table, positions.float()), {}),
        ("positions with rows", ROWS, (table, positions.view(2, 2)), {}),
        ("an odd table", ROWS, (table[:, :15], positions), {}),
        ("an odd rotary width", TABLE, (10, 15), {"theta": 10000.0}),
        ("negative positions", TABLE, (-1, 16), {"theta": 10000.0}),
        ("theta 0", TABLE, (10, 16), {"theta": 0.0}),
        ("half a scaling", TABLE, (10, 16), {"theta": 10000.0, "scaling": {"factor": 16}}),
    ):
        require_refused(backend.ops, op, case, *arguments, **options)
