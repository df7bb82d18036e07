"""Integer work of a step on a device: every field equals that of the op of ``cpu``."""

import pytest
import torch

from deepinfer_cuda.ops import draft, feed, meta, verify
from deepinfer_cuda.plain import plain_op
from deepinfer_cuda.unproven import all_serve

pytestmark = pytest.mark.cuda


@pytest.fixture(autouse=True)
def kernels():
    """The kernels, whether or not they serve already."""
    with all_serve():
        yield


@pytest.fixture
def draw(cuda):
    """Random int32 of a range and shape, on the device."""
    generator = torch.Generator().manual_seed(17)

    def ints(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator).int().to(cuda)

    return ints


def on_host(x):
    if isinstance(x, dict):
        return {key: on_host(value) for key, value in x.items()}
    return x.cpu() if isinstance(x, torch.Tensor) else x


def same(op, got, *args, **options):
    """``got`` is what the op of ``cpu`` gives, field by field, dtypes included."""
    wanted = plain_op(op)(*map(on_host, args), **on_host(options))
    _equal(got, wanted, op)


def _equal(got, wanted, where):
    if isinstance(wanted, torch.Tensor):
        assert got.dtype == wanted.dtype, where
        assert torch.equal(got.cpu(), wanted), where
        return
    assert sorted(got) == sorted(wanted), where
    for key in wanted:
        _equal(got[key], wanted[key], f"{where}: {key}")


RATIOS = [
    {"ratios_sparse": (2, 1)},
    {"ratios_sparse": (1, 2), "ratios_dense": (2, 4)},
    {"ratios_dense": (1,)},
    {},
]


@pytest.mark.parametrize("ratios", RATIOS, ids=str)
@pytest.mark.parametrize(("requests", "most"), [(1, 1), (3, 6), (130, 6), (300, 1), (2, 700)])
def test_metadata_of_rows_equal_those_of_cpu(draw, requests, most, ratios):
    q = draw(1, most + 1, requests)
    k = q + draw(0, 1500, requests)
    tables = draw(0, 5000, requests, 40)
    total = int(q.sum())
    valid = draw(0, 4, total) > 0
    args = (q, k, tables, draw(0, 99, requests), draw(0, 99, requests))
    for window in (128, 0):
        options = {"block_size": 128, "window": window, "ring": 134 if window else 0, "valid": valid, **ratios}
        same("meta.decode_metadata", meta.decode_metadata(*args, **options), *args, **options)


def test_metadata_with_requests_that_have_no_row(draw):
    q = torch.tensor([0, 3, 0, 0, 2, 0], dtype=torch.int32, device=draw(0, 1, 1).device)
    args = (q, q + 7, draw(0, 50, 6, 3), draw(0, 9, 6), draw(0, 9, 6))
    options = {"block_size": 8, "window": 4, "ring": 10, "ratios_sparse": (2,), "valid": draw(1, 2, 5) > 0}
    same("meta.decode_metadata", meta.decode_metadata(*args, **options), *args, **options)


def test_metadata_of_rows_without_a_request_name_nobody(draw):
    """More rows than the requests have, which only a fault elsewhere makes: nothing is read out of bounds."""
    q = draw(2, 3, 4)
    got = meta.decode_metadata(q, q + 9, draw(0, 50, 4, 3), draw(0, 9, 4), draw(0, 9, 4), block_size=8, window=4,
                               ring=10, ratios_sparse=(1,), valid=draw(1, 2, 11) > 0)  # fmt: skip
    assert got["query_indices"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, *[998244353] * 3]
    assert got["slot_swa"][8:].tolist() == got["slot_main"][1][8:].tolist() == [-1] * 3


@pytest.mark.parametrize("grams", [0, 1, 4])
@pytest.mark.parametrize("remapped", [False, True])
@pytest.mark.parametrize(("requests", "drafts"), [(1, 0), (9, 0), (7, 5), (150, 5), (150, 2)])
def test_fed_tokens_equal_those_of_cpu(draw, requests, drafts, remapped, grams):
    q, vocab, results = drafts + 1, 500, requests + 3
    fresh, sampled = draw(0, vocab, requests, q), draw(-2, vocab + 3, results)
    table = draw(-1, 90, vocab - 20)
    given = {"drafts": draw(-1, vocab + 2, results, drafts).long(), "accepted": draw(-1, drafts + 2, results)}
    if grams:
        given |= {"ngram_win": draw(-1, 90, requests, drafts + grams - 1), "ngram_table": table, "ngram_pad": 91}
    remap = draw(-1, results, requests) if remapped else None
    even = torch.full_like(fresh[:, 0], q)
    for rows in (even, draw(1, q + 1, requests)) if drafts else (even,):
        for left_out in ((), ("drafts",), ("accepted",)):
            options = {"vocab_size": vocab} | {name: value for name, value in given.items() if name not in left_out}
            if not drafts:
                options.pop("drafts", None)
            args = (fresh, rows, remap, sampled, int(rows.sum()))
            same("meta.feed_tokens", feed.feed_tokens(*args, **options), *args, **options)


@pytest.mark.parametrize("remapped", [False, True])
@pytest.mark.parametrize("requests", [1, 200])
def test_corrected_lengths_equal_those_of_cpu(draw, requests, remapped):
    remap = draw(-1, requests + 2, requests) if remapped else None
    args = (draw(5, 900, requests), draw(1, 7, requests), remap, draw(-2, 9, requests + 1))
    same("meta.correct_lengths", feed.correct_lengths(*args, num_draft=5), *args, num_draft=5)


@pytest.mark.parametrize("remapped", [False, True])
@pytest.mark.parametrize(("requests", "drafts"), [(1, 1), (5, 5), (130, 5), (40, 2)])
def test_verified_rows_equal_those_of_cpu(draw, requests, drafts, remapped):
    confidence = draw(0, 6, requests, drafts).float() / 4  # ties, and numbers above 1
    confidence[draw(0, 9, requests, drafts) == 0] = float("nan")
    confidence[draw(0, 9, requests, drafts) == 0] = -1.0
    remap = draw(-1, requests + 1, requests) if remapped else None
    for budget in {requests, requests + 1, requests + requests * drafts // 2, requests * (drafts + 1)}:
        args = (confidence, remap, budget)
        same("meta.verify_lengths", verify.verify_lengths(*args), *args)


@pytest.mark.parametrize(("requests", "block", "window"), [(1, 5, 128), (33, 5, 128), (7, 1, 3), (4, 8, 200)])
def test_draft_rows_equal_those_of_cpu(draw, requests, block, window):
    last = draw(0, 300, requests)
    args = (draw(-2, 520, requests).long(), last, draw(0, 90, requests))
    options = {"block": block, "window": window, "ring": window + 6, "noise": 499, "vocab_size": 500}
    same("meta.draft_inputs", draft.draft_inputs(*args, **options), *args, **options)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (5, 128), (300, 130)])
def test_index_rows_equal_those_of_cpu(draw, rows, width):
    window = torch.stack([draw(0, 5000, rows), draw(0, width + 3, rows)], 1)
    same("meta.window_index_decode", meta.window_index_decode(window, 134, width), window, 134, width)
    pivots = draw(0, width, rows, 4)
    same("meta.window_index_prefill", meta.window_index_prefill(pivots, width), pivots, width)
    left, right = draw(-1, 90, rows, width), draw(-1, 90, rows, 33)
    same("meta.index_cat", meta.index_cat(left, right, 1000), left, right, 1000)
    entries, tables, context = draw(-3, 8 * 64, rows, width), draw(0, 900, rows, 8), draw(0, 512, rows)
    got = meta.logical_to_slot(entries, tables, 64)
    same("meta.logical_to_slot", got, entries, tables, 64)
    entries[:, 0] = 2**30
    got = meta.logical_to_slot(entries, tables, 64, context=context)
    assert torch.equal(got[:, 1:].cpu(), plain_op("meta.logical_to_slot")(
        entries[:, 1:].cpu(), tables.cpu(), 64, context=context.cpu()))  # fmt: skip
    assert bool((got[:, 0] == -1).all())


def test_what_no_kernel_takes_is_done_by_the_plain_op(draw):
    wide = draw(0, 40, 6, 4)[:, ::2]  # with gaps
    same("meta.window_index_decode", meta.window_index_decode(wide, 30, 9), wide, 30, 9)
    none = draw(0, 1, 0, 4)
    same("meta.window_index_prefill", meta.window_index_prefill(none, 9), none, 9)
    q = draw(1, 3, 5)
    args = (q, q + 4, draw(0, 9, 5, 3), draw(0, 9, 5), draw(0, 9, 5))
    options = {"block_size": 8, "window": 4, "ring": 10}
    same("meta.decode_metadata", meta.decode_metadata(*args, **options), *args, **options)


def test_nothing_of_a_fed_step_waits_for_the_device(draw, cuda):
    q, requests = 6, 40
    fresh, rows, sampled = draw(0, 500, requests, q), draw(1, q + 1, requests), draw(0, 500, requests)
    drafts, accepted, confidence = draw(0, 500, requests, 5), draw(0, 6, requests), torch.rand(requests, 5, device=cuda)
    total, slots = int(rows.sum()), draw(0, 9, requests)
    valid, tables = draw(1, 2, total) > 0, draw(0, 9, requests, 8)

    def step():
        shared = verify.verify_lengths(confidence, None, 3 * requests)
        feed.feed_tokens(fresh, rows, None, sampled, total, vocab_size=500, drafts=drafts, accepted=accepted)
        ends = feed.correct_lengths(slots, shared, None, accepted, num_draft=5)
        meta.decode_metadata(rows, ends + 90, tables, slots, slots, block_size=128, window=128, ring=134,
                             ratios_sparse=(2, 1), valid=valid)  # fmt: skip

    step()
    torch.cuda.synchronize()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode(before)
