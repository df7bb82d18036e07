"""Experts without a device: the packed layout against a plain loop, tiles of segments, what the kernels refuse."""

import random

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import quant as reference
from deepinfer_cuda import grouped
from deepinfer_cuda.routing import Dispatched, Routing, tiles_of
from deepinfer_cuda.tensors import PreparedWeight
from deepinfer_cuda.tl.moe import packing
from deepinfer_cuda.tl.moe.gate import segments
from deepinfer_cuda.tl.moe.sort import slots, slots_of_few
from deepinfer_cuda.weights import prepared

MASK = 0x81C081C0


def fp4_stack(g, experts, outputs, inputs):
    pairs = [samples.fp4_weight(g, outputs, inputs) for _ in range(experts)]
    values = torch.stack([reference.weight_values(*pair) for pair in pairs]).float()
    return (*(torch.stack([p[i].view(torch.uint8) for p in pairs]) for i in (0, 1)), values)


def bf16(bits):
    return torch.tensor(bits - (bits >> 15 << 16), dtype=torch.int16).view(torch.bfloat16).float().item()


def expanded(word, scale):
    """``di_expand_e2m1`` of one word: values of the four eights' even and odd columns."""
    spread = [word & 0x81808180 | word >> 8 & 0x00400040, word << 2 & MASK, word << 6 & MASK]
    spread.append((word << 12 | word >> 20) & MASK)
    return [[bf16(s & 0xFFFF) * bf16(scale << 7), bf16(s >> 16 & 0xFFFF) * bf16(scale << 7)] for s in spread]


@pytest.mark.parametrize("gated", [False, True], ids=["", "gated"])
@pytest.mark.parametrize(("outputs", "inputs"), [(128, 128), (192, 96)])
def test_packed_stack_expands_to_the_values_of_the_checkpoint(outputs, inputs, gated):
    print("seed 5")
    g, draw = torch.Generator().manual_seed(5), random.Random(5)
    codes, scales, values = fp4_stack(g, 2, outputs, inputs)
    slabs, steps = packing.units(outputs), packing.units(inputs)
    units = packing.pack(codes, scales, gated=gated).view(2, slabs, steps, packing.LINES * packing.LINE)
    for _ in range(600):
        expert, slab, step = draw.randrange(2), draw.randrange(slabs), draw.randrange(steps)
        thread, group, half = draw.randrange(128), draw.randrange(2), draw.randrange(2)
        unit = units[expert, slab, step]
        word = unit[thread * 4 + group * 2 + half].item() & 0xFFFFFFFF
        exponents = unit[packing.CODE_WORDS + thread // 4].item() & 0xFFFFFFFF
        row = slab * 64 + thread // 32 * 16 + half * 8 + thread % 32 // 4
        if gated:
            feature = row // 16 * 8 + row % 8
            row = feature + outputs // 2 * half
        for eight, pair in enumerate(expanded(word, exponents >> 8 * (group * 2 + half) & 0xFF)):
            for odd, value in enumerate(pair):
                column = step * 64 + group * 32 + eight * 8 + thread % 4 * 2 + odd
                assert value == (values[expert, row, column].item() if column < inputs else 0.0)


@pytest.mark.parametrize("tile", [8, 16])
@pytest.mark.parametrize("loads", [[3, 0, 5, 1], [0, 0, 0, 9], [40, 2, 0, 17], [0, 0, 0, 0], [16, 8, 8, 24]], ids=str)
def test_tiles_of_segments_cover_each_row_once(loads, tile):
    rows = sum(loads) + 5  # five behind the last segment
    ends = torch.tensor(loads, dtype=torch.int32).cumsum(0).int()
    tiles = tiles_of(ends, rows, tile)
    assert tiles.expert.shape == (slots(rows, len(loads), tile),)
    found = []
    for expert, begin, count in zip(*(t.tolist() for t in (tiles.expert, tiles.begin, tiles.rows)), strict=True):
        assert 0 <= count <= tile
        found += [(expert, begin + i) for i in range(count)]
    expected = [expert for expert, load in enumerate(loads) for _ in range(load)]
    assert found == list(zip(expected, range(sum(loads)), strict=True))


@pytest.mark.parametrize(("pairs", "experts", "tile", "most"), [(6, 384, 8, 6), (384, 384, 8, 384), (512, 8, 64, 16)])
def test_slots_without_gaps_hold_any_spread(pairs, experts, tile, most):
    assert slots_of_few(pairs, experts, tile) == most
    alone = min(pairs, experts - 1)  # the worst spread: a row each, and all others together
    assert alone + -(-(pairs - alone) // tile) <= most


def test_routing_without_a_kernel_sorts_by_expert_then_token():
    idx = torch.tensor([[2, 0], [-1, 2], [0, 1]])
    weight = torch.tensor([[0.1, 0.2], [0.0, 0.3], [0.4, 0.5]])
    routing = Routing(idx, weight)
    assert routing.pair_of.tolist() == [1, 4, 5, 0, 3, -1]
    assert routing.row_of.tolist() == [[3, 0], [-1, 4], [1, 2]]
    torch.testing.assert_close(routing.row_weight, torch.tensor([0.2, 0.4, 0.5, 0.1, 0.3, 0.0]))
    tiles = routing.plain_tiles(3, 8)
    assert tiles.rows.tolist() == [2, 1, 2]
    assert (tiles.expert.tolist(), tiles.begin.tolist()) == ([0, 1, 2], [0, 2, 3])
    d = Dispatched(torch.arange(3.0).view(3, 1).bfloat16(), routing)
    assert d.segments == ((0, 0, 2), (1, 2, 3), (2, 3, 5))
    assert d.x[:5, 0].tolist() == [0.0, 2.0, 2.0, 0.0, 1.0]
    assert d.handle.rows.tolist() == [[0, 3], [-1, 4], [1, 2]]


@pytest.mark.parametrize(("width", "expected"), [(5120, 16), (256, 4), (64, 1), (1024, 16), (1088, 1), (2304, 12)])
def test_segments_of_the_gate_depend_on_the_width_alone(width, expected):
    assert segments(width) == expected


def test_more_rows_an_expert_take_wider_tiles():
    assert [grouped.tile_rows(rows, 384) for rows in (6, 384, 1536, 3072, 24576)] == [8, 8, 8, 16, 96]


@pytest.mark.parametrize(("reach", "outputs"), [((-9, 2), 128), ((-111, 0), 128), ((-9, -6), 100)])
def test_stack_beyond_the_layout_is_not_packed(reach, outputs):
    assert not grouped.can_pack(empty_stack(outputs, reach), gated=True)
    assert grouped.can_pack(empty_stack(128, (-9, -6)), gated=True)


def empty_stack(outputs, reach):
    """A stack of zeros that says it is on a device."""
    w = PreparedWeight(
        name="w", use="experts", fmt="e2m1", stored=torch.zeros(2, outputs, 32, dtype=torch.uint8),
        scales=torch.zeros(2, outputs, 2, dtype=torch.uint8), block_rows=1, reach=reach,
    )  # fmt: skip
    w.device = torch.device("cuda")
    return w


@pytest.mark.parametrize("parts", [1, 2], ids=["", "gated"])
@pytest.mark.parametrize(("outputs", "inputs"), [(128, 128), (192, 96)])
def test_a_stack_that_keeps_its_layout_alone_gives_its_codes_back(outputs, inputs, parts):
    print("seed 6")
    codes, scales, values = fp4_stack(torch.Generator().manual_seed(6), 2, outputs, inputs)
    pieces = [[list(m.chunk(parts)) for m in of] for of in (codes, scales)]
    w = prepared("w", *pieces, "experts")
    w.device = torch.device("cuda")
    grouped.keep_packed(w)
    assert w._stored is None
    assert torch.equal(w.stored, codes.view(torch.uint8))
    assert torch.equal(w.matrix.transpose(1, 2), values.float())
    other = packing.pack(codes.view(torch.uint8), scales.view(torch.uint8), gated=parts == 1)
    assert torch.equal(grouped.packed(w, gated=parts == 1).view(torch.int32), other)  # the one that it does not keep
