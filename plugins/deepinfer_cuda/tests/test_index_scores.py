"""How index scores are cut into blocks, without a device."""

import pytest

from deepinfer_cuda.index_scores import PLACES, tiles_of_block


@pytest.mark.parametrize("rows", [1, 5, 8, 64, 256, 300, 1093, 65535])
@pytest.mark.parametrize("tiles", [1, 3, 7, 256, 1024, 2048])
def test_blocks_cover_all_tiles_in_few_waves(rows, tiles):
    each = tiles_of_block(rows, tiles)
    assert 1 <= each <= tiles
    blocks = rows * -(-tiles // each)
    assert blocks <= max(rows, 3 * PLACES)


def test_blocks_of_a_full_step_are_one_wave():
    assert tiles_of_block(64, 256) == 26
    assert tiles_of_block(256, 256) == 52
    assert tiles_of_block(1, 256) == 1
