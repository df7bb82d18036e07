"""Products without a device: layouts of weights, the cut of the inputs, and the forms of prepared weights."""

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import quant as reference
from deepinfer_cuda import packing, products
from deepinfer_cuda.ops.mhc import parts_of, run_of
from deepinfer_cuda.tl.mhc import LANES, PARTS, SLICE, groups_of
from deepinfer_cuda.tl.parts.cuts import (
    MOST_SPLITS,
    PLACES,
    STEP,
    STREAMS,
    best_cut_of,
    cut_of,
    even_cut_of,
    rows_of_tile,
    stream_of,
    wide_cut_of,
)
from deepinfer_cuda.weights import prepared

SHAPES = [(1792, 5120), (32768, 1280), (5120, 8192), (4608, 5120), (5120, 2304), (384, 5120), (256, 256), (64, 128)]


def fp8(seed, outputs, inputs):
    codes, scale = samples.fp8_weight(torch.Generator().manual_seed(seed), outputs, inputs)
    return codes, scale, reference.weight_values(codes, scale).float()


def unpacked(words, factors):
    """What the kernel makes of a packed weight: bits moved into bf16 places, times the factor."""
    pieces, chunks, _ = words.shape
    values = torch.empty(pieces * 16, chunks * 32)
    codes = words.view(torch.uint8).view(pieces, chunks, 8, 4, 4, 2, 2)  # g, t, eight inputs, which, row half
    bits = ((codes.to(torch.int32) & 0x80) << 8) | ((codes.to(torch.int32) & 0x7F) << 4)
    numbers = (bits << 16).view(torch.float32)
    for piece in range(pieces):
        for chunk in range(chunks):
            factor = (factors[piece // 2, chunk].to(torch.int64) & 0xFFFF0000).to(torch.int64)
            scale = torch.tensor(int(factor)).to(torch.int32).view(torch.float32)
            block = numbers[piece, chunk].permute(4, 0, 2, 1, 3).reshape(16, 32) * scale
            values[piece * 16 : piece * 16 + 16, chunk * 32 : chunk * 32 + 32] = block
    return values


def test_packed_codes_times_factors_are_the_weight():
    codes, scale, values = fp8(1, 128, 256)
    w = prepared("w", codes, scale, "dense")
    assert packing.can_pack(w)
    assert torch.equal(unpacked(packing.packed_codes(w), packing.factors(w).view(torch.int32)), values)


@pytest.mark.parametrize(("outputs", "use"), [(256, "dense"), (384, "heads:3")])
def test_a_weight_that_keeps_its_layout_alone_gives_its_codes_back(outputs, use):
    codes, scale, values = fp8(3, outputs, 256)
    w = prepared("w", codes, scale, use)
    products.keep_packed(w)
    assert w._stored is None
    assert torch.equal(w.stored.view(codes.shape), codes.view(torch.uint8))
    assert torch.equal(w.matrix.transpose(-1, -2).reshape(values.shape), values)
    assert torch.equal(w.exact.view(values.shape).float(), values)


def test_a_weight_that_no_kernel_takes_keeps_its_codes():
    codes, scale, _ = fp8(4, 96, 128)
    w = prepared("w", codes, scale, "dense")
    products.keep_packed(w)
    assert torch.equal(w._stored, codes.view(torch.uint8))


def test_packing_takes_only_scales_that_bf16_holds_with_the_bias():
    codes, scale, _ = fp8(2, 128, 256)
    for byte, fits in ((134, True), (135, False), (17, True), (16, False)):
        scale[1, 1] = byte
        assert packing.can_pack(prepared("w", codes, scale, "dense")) is fits


@pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
@pytest.mark.parametrize("groups", [1, 3])
def test_a_cut_divides_the_inputs_into_whole_steps_of_a_cluster(outputs, inputs, groups):
    cut = cut_of(outputs, inputs, groups)
    assert cut is not None
    assert inputs % (cut.splits * STEP) == 0
    assert 1 <= cut.splits <= MOST_SPLITS
    assert outputs % cut.tile == 0


def test_only_long_sums_that_are_not_cut_have_wide_blocks():
    cut = wide_cut_of(25600, 6144)
    assert (cut.tile, cut.splits, cut.blocks) == (256, 1, 100)
    assert cut.blocks <= PLACES
    assert wide_cut_of(32768, 1280) is None
    assert wide_cut_of(5120, 8192) is None
    assert wide_cut_of(25600, 128) is None


@pytest.mark.parametrize(
    ("shape", "splits"), [((5120, 8192, 1), 4), ((4608, 5120, 1), 3), ((5120, 2304, 1), 3), ((1792, 5120, 1), 8)]
)
def test_more_rows_have_a_piece_less_where_the_rest_runs_at_once(shape, splits):
    cut = even_cut_of(*shape)
    assert (cut.tile, cut.splits, cut.blocks) == (64, splits, shape[0] // 64 * splits)
    assert best_cut_of(*shape, 64) == cut
    assert best_cut_of(*shape, 32) == cut_of(*shape)
    assert even_cut_of(32768, 1280) == cut_of(32768, 1280)
    assert even_cut_of(36, 256) is None


def test_blocks_have_sixteen_rows_where_a_few_pieces_of_codes_are_added_up():
    assert [rows_of_tile(cut_of(5120, 8192), rows, True) for rows in (1, 8, 9, 17, 64, 90)] == [16, 16, 16, 32, 64, 64]
    assert [rows_of_tile(cut_of(1792, 5120), rows, True) for rows in (1, 9)] == [8, 16]
    assert rows_of_tile(cut_of(32768, 1280), 1, True) == 8
    assert rows_of_tile(cut_of(1024, 5120), 1, False) == 8


def test_streams_share_their_chunks_evenly_and_take_few_rows():
    for (outputs, inputs, groups), stream in STREAMS.items():
        assert inputs // 32 % stream.warps == 0
        assert stream.depth <= inputs // 32 // stream.warps <= 32
        assert outputs % (16 * stream.pieces) == 0
        assert stream_of(outputs, inputs, groups, stream.most + 1) is None
        assert stream_of(outputs, inputs, groups, 1)["rows"] == 1
    assert stream_of(64, 128, 1, 1) is None


def test_sizes_that_no_tile_divides_have_no_cut():
    assert cut_of(96, 256, 2) is None
    assert cut_of(36, 256) is None
    assert cut_of(64, 96) is None


@pytest.mark.parametrize("sizes", [(64, 96), (40, 24), (33,)])
def test_joined_pieces_keep_codes_and_values(sizes):
    pairs = [fp8(10 + n, n, 96) for n in sizes]
    w = prepared("w", [c for c, _, _ in pairs], [s for _, s, _ in pairs], "dense")
    assert w.parts == sizes
    assert w.fmt == "e4m3"
    assert torch.equal(w.matrix, torch.cat([v for _, _, v in pairs]).t())
    assert w.block_rows == (32 if all(n % 32 == 0 for n in sizes[:-1]) else 1)


@pytest.mark.parametrize("each", [24, 64])
def test_heads_keep_the_scales_of_their_rows(each):
    codes, scale, values = fp8(20 + each, 3 * each, 64)
    w = prepared("w", codes, scale, "heads:3")
    assert w.shape == (3, 64, each)
    assert torch.equal(w.matrix, values.view(3, each, 64).transpose(1, 2))


def test_experts_are_a_stack_of_packed_fp4():
    g = torch.Generator().manual_seed(30)
    pairs = [samples.fp4_weight(g, 32, 64) for _ in range(3)]
    w = prepared("w", [c for c, _ in pairs], [s for _, s in pairs], "experts")
    assert (w.fmt, w.shape, w.block_rows) == ("e2m1", (3, 64, 32), 1)
    expected = torch.stack([reference.weight_values(c, s).float() for c, s in pairs])
    assert torch.equal(w.matrix, expected.transpose(1, 2))


def test_what_does_not_fit_is_left_to_the_op_of_cpu():
    codes, scale, _ = fp8(40, 64, 96)
    for w, sf, use in (
        (codes, scale.t().contiguous(), "dense"),
        (codes, None, "dense"),
        (codes, scale, "heads:5"),
        (codes, scale, "other"),
        ([codes], [scale, scale], "dense"),
        ([], [], "experts"),
    ):
        assert prepared("w", w, sf, use) is None


def test_the_parts_of_a_mixing_matrix_add_up_to_it():
    fn = torch.randn(24, 4 * 128, generator=torch.Generator().manual_seed(50))
    parts = parts_of(fn, 4).view(128 // SLICE, 4, PARTS, LANES, SLICE).float()
    whole = parts.sum(2)[:, :, :24].permute(2, 1, 0, 3).reshape(24, 4 * 128)
    assert torch.equal(whole, fn)
    assert not parts[:, :, :, 24:].any()


@pytest.mark.parametrize(("rows", "run"), [(1, 1), (192, 1), (193, 2), (384, 2), (385, 4), (512, 4), (1024, 5)])
def test_blocks_of_hyper_connections_take_as_many_slices_as_let_all_run_at_once(rows, run):
    assert run_of(80, -(-rows // 64)) == run
    assert run_of(7, -(-rows // 64)) == 1


@pytest.mark.parametrize("slices", [1, 4, 7, 80])
def test_groups_of_slices_are_whole(slices):
    assert slices % groups_of(slices) == 0
