"""Metadata against loops, and against the packer's plain version of the native distribution."""

import numpy as np
import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import meta

reference_pack = pytest.importorskip("deepinfer_native.reference_pack", reason="install deepinfer-native")


def i32(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def test_window_index_prefill_joins_two_runs():
    pivots = i32([[4, 2, 100, 3], [0, 0, 7, 1], [5, 3, 9, 0], [0, 0, 0, 0]])
    assert meta.window_index_prefill(pivots, 5).tolist() == [
        [4, 5, 100, 101, 102], [7, -1, -1, -1, -1], [5, 6, 7, -1, -1], [-1] * 5,
    ]  # fmt: skip


def test_window_index_decode_wraps_inside_its_ring():
    got = meta.window_index_decode(i32([[5, 3], [6 + 2, 4], [12, 1], [0, 0]]), 6, 4)
    assert got.tolist() == [[5, 0, 1, -1], [8, 9, 10, 11], [12, -1, -1, -1], [-1] * 4]


def test_compressed_index_counts_from_the_offset():
    assert meta.compressed_index(i32([[3, 2], [9, 0]]), 3, base=100).tolist() == [[103, 104, -1], [-1, -1, -1]]


def test_compressed_index_through_a_table_gives_slots():
    table = i32([[5, 2], [7, 1]])
    got = meta.compressed_index(i32([[0, 3], [4, 4]]), 4, block_table=table, per_block=2)
    assert got.tolist() == [[10, 11, 4, -1], [14, 15, 2, 3]]


def test_index_cat_shifts_only_real_entries():
    assert meta.index_cat(i32([[1, -1]]), i32([[0, 5, -1]]), 40).tolist() == [[1, -1, 40, 45, -1]]


def test_logical_to_slot_goes_through_each_rows_table():
    table = i32([[5, 2], [7, 1]])
    got = meta.logical_to_slot(i32([[0, 3, -1], [1, 2, 3]]), table, 2, context=i32([4, 3]))
    assert got.tolist() == [[10, 5, -1], [15, 2, -1]]
    assert got.dtype == torch.int32


def test_logical_to_slot_with_too_few_tables_is_refused():
    with pytest.raises(ShapeContractError, match="block_table"):
        meta.logical_to_slot(i32([[0], [1]]), i32([[1]]), 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.int64])
def test_gather_rows_out_of_range_gives_zeros(dtype):
    x = torch.arange(1, 7).view(3, 2).to(dtype)
    assert meta.gather_rows(x, i32([2, -1, 3, 0])).tolist() == [[5, 6], [0, 0], [0, 0], [1, 2]]


def test_gather_rows_of_nothing_gives_zeros():
    assert meta.gather_rows(torch.zeros(0, 2), i32([0, 1])).tolist() == [[0, 0], [0, 0]]


def test_block_tables_of_a_placeholder_are_the_null_block():
    got = meta.block_tables(i32([[3, 4], [5, 6]]), i32([1, meta.PLACEHOLDER_QUERY, 0]))
    assert got.tolist() == [[5, 6], [0, 0], [3, 4]]


def random_rows(rng: np.random.Generator, geometry) -> list:
    rows = []
    for slot in range(int(rng.integers(1, 6))):
        start, q = int(rng.integers(0, 40)), int(rng.integers(1, 5))
        blocks = -(-(start + q) // geometry.block_size)
        rows.append(
            reference_pack.Row(
                tokens=list(range(start + q)),
                start=start,
                q=q,
                block_table=rng.permutation(np.arange(1, 60))[:blocks].tolist(),
                swa_slot=slot + 1,
                state_slot=slot + 3,
            )
        )
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_decode_metadata_equals_the_plain_packer(seed):
    geometry = reference_pack.Geometry(
        block_size=8, window=6, swa_ring=10, ratios_sparse=(1, 2), ratios_dense=(4,), max_blocks=6
    )
    rows = random_rows(np.random.default_rng(seed), geometry)
    expected = reference_pack.pack_decode(rows, geometry)
    tables = np.zeros((len(rows), 6), dtype=np.int32)
    for i, r in enumerate(rows):
        tables[i, : len(r.block_table)] = r.block_table
    got = meta.decode_metadata(
        i32([r.q for r in rows]), i32([r.end for r in rows]), torch.from_numpy(tables),
        i32([r.state_slot for r in rows]), i32([r.swa_slot for r in rows]), block_size=8, window=6, ring=10,
        ratios_sparse=(1, 2), ratios_dense=(4,),
    )  # fmt: skip
    compared = 0
    for name, value in got.items():
        if name == "block_tables":
            owner = np.repeat(np.arange(len(rows)), [r.q for r in rows])
            assert np.array_equal(value.numpy(), tables[owner])
            continue
        want = expected[name]
        pairs = [(value[k], want[k]) for k in want] if isinstance(want, dict) else [(value, want)]
        assert not isinstance(want, dict) or set(value) == set(want)
        for mine, theirs in pairs:
            assert mine.dtype in (torch.int32, torch.bool)
            assert np.array_equal(mine.numpy(), theirs), name
            compared += 1
    assert compared >= 15


def test_decode_metadata_masks_placeholder_rows():
    got = meta.decode_metadata(
        i32([2]), i32([8]), i32([[3, 4]]), i32([1]), i32([1]), block_size=8, window=4, ring=6, ratios_sparse=(2,),
        valid=torch.tensor([True, False]),
    )  # fmt: skip
    assert got["query_indices"].tolist() == [0, 998244353]
    assert got["slot_swa"].tolist()[1] == -1
    assert got["slot_main"][2].tolist() == [-1, -1]
    assert got["positions_c"][2].tolist() == [0, 0]


def test_pivots_of_another_width_are_refused():
    with pytest.raises(ShapeContractError, match=r"meta\.window_index_prefill.*\[T, 4\]"):
        meta.window_index_prefill(i32([[1, 2]]), 4)
