"""Engram on a device: rows as Python counts them, table values to the bit, the gate against fp64."""

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import engram as reference
from deepinfer_core.conformance.reference import formats
from deepinfer_cuda.ops import engram
from deepinfer_cuda.plain import plain_op

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("rows", "columns"), [(1, 24), (130, 24), (7, 6)])
def test_hash_equals_python_integers(cuda, rows, columns, dtype):
    g = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 99092, (rows, 4), generator=g)
    multipliers = [int(v) * 2 + 1 for v in torch.randint(2**44, (2**63 - 1) // 99092 // 2, (4,), generator=g)]
    primes = [15_999_989 - 2 * i for i in range(columns)]
    offsets = [sum(primes[:i]) for i in range(columns)]
    numbers = (torch.tensor(v, dtype=torch.int64, device=cuda) for v in (multipliers, primes, offsets))
    got = engram.hash(ids.to(dtype).to(cuda), *numbers)
    expected = torch.tensor(reference.hash_rows(ids.tolist(), multipliers, primes, offsets))
    assert torch.equal(got.cpu(), expected.view(rows, columns))


@pytest.mark.parametrize("width", [32, 256])
def test_fetch_gives_the_values_of_the_table(cuda, width):
    g = torch.Generator().manual_seed(width)
    weight, _ = samples.fp8_weight(g, 300, width)
    scale = torch.randint(100, 150, (300, width // 32), generator=g, dtype=torch.uint8)
    rows = torch.randint(0, 300, (77, 6), generator=g)
    table = engram.prepare(weight.to(cuda), scale.to(cuda))
    got = engram.fetch(rows.to(cuda), table)
    expected = formats.decode(weight.view(torch.uint8), scale, "e4m3", 32, "ue8m0")[rows].reshape(77, 6 * width)
    assert torch.equal(got.double().cpu() + 0.0, expected.double() + 0.0)


@pytest.mark.parametrize("pinned", [False, True])
def test_a_table_in_the_memory_of_the_host_gives_the_same_rows(cuda, pinned):
    g = torch.Generator().manual_seed(3)
    weight, _ = samples.fp8_weight(g, 300, 256)
    scale = torch.randint(100, 150, (300, 8), generator=g, dtype=torch.uint8)
    rows = torch.randint(0, 300, (9, 6), generator=g).to(cuda)
    expected = engram.fetch(rows, engram.prepare(weight.to(cuda), scale.to(cuda)))
    host = (weight.pin_memory(), scale.pin_memory()) if pinned else (weight, scale)
    table = engram.prepare(*host)
    assert table.held[0].device.type == "cpu"
    assert torch.equal(engram.fetch(rows, table), expected)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("rows", "width"), [(1, 5120), (131, 5120), (40, 256)])
def test_gate_equals_fp64(cuda, rows, width, masked):
    g = torch.Generator().manual_seed(rows)
    x, kv = samples.normal(g, rows, 4, width), samples.normal(g, rows, 5 * width, scale=2.0)
    left, right = samples.normal(g, 4, width), samples.normal(g, 4, width)
    mask = torch.rand(rows, generator=g) < 0.5 if masked else None
    params = plain_op("engram.prepare_gate")(left.to(cuda), right.to(cuda))
    got = engram.gate(x.to(cuda), kv.to(cuda), params, mask=None if mask is None else mask.to(cuda))
    true = reference.gate(x, kv, left.double() * right.double(), 1e-20, mask)
    assert float((got.double().cpu() - true).norm() / true.norm()) < 4e-3
    if mask is not None:
        assert torch.equal(got.cpu()[~mask], x[~mask])
