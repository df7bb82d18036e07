"""What can be said of sparse attention without a device: who serves what, refusals, and that a kernel lowers."""

import pytest
import torch

from deepinfer_core.caches import CacheView
from deepinfer_core.errors import ShapeContractError
from deepinfer_cuda.ops import attention
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.tl.attention.prefill import sparse_prefill

HEADS, WIDTH = 2, 64


def window(units: int = 3, page: int = 5) -> CacheView:
    size = WIDTH + WIDTH // 32
    stride = page * size + 46
    raw = torch.zeros(units * stride + 32, dtype=torch.uint8)
    return CacheView(raw.as_strided((units, page, size), (stride, size, 1), 32), "v41", page, stride, WIDTH)


def test_host_tensors_take_the_plain_op():
    q, kv = torch.randn(3, HEADS, WIDTH).bfloat16(), torch.randn(9, WIDTH).bfloat16()
    indices = torch.randint(-1, 9, (3, 4), dtype=torch.int32)
    got = attention.sparse_prefill(q, kv, indices, scale=0.125)
    expected = plain_op(attention.PREFILL)(q, kv, indices, scale=0.125)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_decode_refuses_what_the_plain_op_refuses():
    q, idx = torch.zeros(3, HEADS, WIDTH).bfloat16(), torch.zeros(3, 4, dtype=torch.int32)
    for wrong in (
        {"idx": idx[:2]},
        {"q": torch.zeros(3, HEADS, WIDTH + 32).bfloat16()},
        {"extra": window()},
        {"sink": torch.zeros(HEADS + 1)},
    ):
        given = {"q": q, "window": window(), "idx": idx} | wrong
        with pytest.raises(ShapeContractError):
            attention.sparse_decode(given.pop("q"), given.pop("window"), given.pop("idx"), scale=1.0, **given)


def test_the_bytes_of_a_view_begin_at_its_first_entry_and_end_with_its_last():
    view = window()
    flat = attention._flat(view)
    assert flat.data_ptr() == view.tensor.data_ptr()
    assert flat.numel() == 2 * view.block_stride + 5 * 66
    view.tensor[2, 4, 65] = 7
    assert flat[-1] == 7
    assert attention._flat(view) is flat


@pytest.mark.parametrize(("columns", "extra", "tiles"), [(1, None, 1), (64, None, 1), (65, 0, 2), (128, 512, 10)])
def test_each_source_is_padded_to_whole_tiles(columns, extra, tiles):
    def of(n: int) -> torch.Tensor:
        return torch.zeros(2, n, dtype=torch.int32)

    assert attention._tiles(of(columns), None if extra is None else of(extra)) == tiles


def test_caches_of_plain_numbers_and_of_other_widths_have_no_kernel():
    view = window()
    assert attention._reads(view, WIDTH)
    assert not attention._reads(view, WIDTH + 32)
    raw = CacheView(torch.zeros(1, 2, 2 * WIDTH, dtype=torch.uint8), "bf16", 2, 4 * WIDTH, WIDTH)
    assert not attention._reads(raw, WIDTH)


def test_a_kernel_lowers_for_a_device_that_is_not_here():
    source = sparse_prefill.lower("sm_100a", width=64)
    assert "sparse_prefill_kernel" in source
    assert "mma_sync" in source
    assert "wgmma" not in source


@pytest.mark.parametrize(
    ("rows", "heads", "tiles", "invariant", "segments"),
    [
        (1, 64, 10, False, 4),
        (28, 64, 10, False, 4),
        (29, 64, 10, False, 2),
        (14, 128, 10, False, 4),
        (15, 128, 10, False, 2),
        (8, 64, 3, False, 2),
        (66, 64, 10, False, 2),
        (67, 64, 10, False, 1),
        (67, 64, 21, False, 2),
        (132, 64, 10, False, 1),
        (133, 64, 10, False, 2),
        (384, 64, 10, False, 1),
        (1, 64, 10, True, 2),
        (384, 64, 10, True, 2),
    ],
)
def test_rows_are_cut_by_the_batch_unless_they_may_not(monkeypatch, rows, heads, tiles, invariant, segments):
    monkeypatch.setattr(attention, "_capability", lambda device: (9, 0))
    monkeypatch.setattr(attention, "_multiprocessors", lambda device: 132)
    q, plan = torch.empty(rows, heads, 512, device="meta"), attention.plan(batch_invariant=invariant)
    assert attention._segments(q, tiles, plan) == segments
    monkeypatch.setattr(attention, "_capability", lambda device: (10, 0))
    assert attention._segments(q, tiles, plan) == 2
