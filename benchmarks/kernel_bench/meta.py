"""Integer work of a step beside what the plain ops launch for it. Columns are requests; a row of 32,768 positions has a
table of 256 blocks, and with drafts a request has 6 rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from deepinfer_cuda.ops import draft, feed, meta, verify
from deepinfer_cuda.plain import plain_op
from kernel_bench.cases import Case
from kernel_bench.harness import Call

REQUESTS = (1, 8, 64, 256)
BLOCKS, BLOCK, DRAFTS, WINDOW, RING, GRAMS, VOCAB = 256, 128, 5, 128, 134, 4, 129_280


def cases(rows: Sequence[int] | None) -> list[Case]:
    """Every op of a decode step, for ``rows`` requests."""
    found = []
    for n in rows or REQUESTS:
        for q in (1, DRAFTS + 1):
            size = n * (16 + BLOCKS * 4) + n * q * (60 + BLOCKS * 4)
            variant = f"{q} rows a request, {BLOCKS} blocks"
            found.append(_both("meta.decode_metadata", meta.decode_metadata, variant, n, size, _metadata(n, q)))
            variant = f"{q} rows a request, {GRAMS}-grams"
            size = n * (q * 40 + 16)
            found.append(_both("meta.feed_tokens", feed.feed_tokens, variant, n, size, _fed(n, q)))
        found.append(_both("meta.correct_lengths", feed.correct_lengths, "", n, 20 * n, _lengths(n)))
        found.append(_both("meta.verify_lengths", verify.verify_lengths, f"{DRAFTS} drafts", n, 24 * n, _certain(n)))
        found.append(_both("meta.draft_inputs", draft.draft_inputs, "block 5", n, 5 * n * 4 * 136, _drafted(n)))
        found.append(_both("meta.logical_to_slot", meta.logical_to_slot, "k 512", n, n * (4096 + 1024), _slots(n)))
        found.append(_both("meta.window_index_decode", meta.window_index_decode, "", n, n * (8 + 512), _window(n)))
        found.append(_both("meta.index_cat", meta.index_cat, "128 + 512", 16 * n, 16 * n * 5120, _joined(16 * n)))
    return found


def _both(op: str, ours: Callable[..., Any], variant: str, n: int, size: float, make: Callable[[], Any]) -> Case:
    def of(function: Callable[..., Any]) -> Callable[[int], Call]:
        def prepared(i: int) -> Call:
            args, options = make()
            return lambda: function(*args, **options)

        return prepared

    return Case(op, variant, n, float(size), of(ours), others={"plain ops": of(plain_op(op))})


def _ints(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, dtype=torch.int32, device="cuda")


def _metadata(n: int, q: int) -> Callable[[], Any]:
    def make() -> Any:
        rows = torch.full((n,), q, dtype=torch.int32, device="cuda")
        valid = torch.ones(n * q, dtype=torch.bool, device="cuda")
        options = {"block_size": BLOCK, "window": WINDOW, "ring": RING, "ratios_sparse": (2, 1), "valid": valid}
        return (rows, _ints(9, 32_000, n), _ints(0, 9000, n, BLOCKS), _ints(0, 99, n), _ints(0, 99, n)), options

    return make


def _fed(n: int, q: int) -> Callable[[], Any]:
    def make() -> Any:
        rows = torch.full((n,), q, dtype=torch.int32, device="cuda")
        options: dict[str, Any] = {"vocab_size": VOCAB, "ngram_pad": 0}
        options |= {"ngram_win": _ints(0, 90_000, n, q + GRAMS - 2), "ngram_table": _ints(0, 90_000, VOCAB)}
        if q > 1:
            options |= {"drafts": _ints(0, VOCAB, n, q - 1), "accepted": _ints(0, q, n)}
        return (_ints(0, VOCAB, n, q), rows, _ints(0, n, n), _ints(0, VOCAB, n), n * q), options

    return make


def _lengths(n: int) -> Callable[[], Any]:
    return lambda: ((_ints(9, 99, n), _ints(1, 6, n), _ints(0, n, n), _ints(0, 6, n)), {"num_draft": DRAFTS})


def _certain(n: int) -> Callable[[], Any]:
    return lambda: ((torch.rand(n, DRAFTS, device="cuda"), _ints(0, n, n), 3 * n), {})


def _drafted(n: int) -> Callable[[], Any]:
    options = {"block": DRAFTS, "window": WINDOW, "ring": RING, "noise": 1, "vocab_size": VOCAB}
    return lambda: ((_ints(0, VOCAB, n), _ints(0, 9999, n), _ints(0, 99, n)), options)


def _slots(n: int) -> Callable[[], Any]:
    return lambda: ((_ints(-1, BLOCKS * 64, n, 512), _ints(0, 9000, n, BLOCKS), 64), {})


def _window(n: int) -> Callable[[], Any]:
    return lambda: ((_ints(0, WINDOW, n, 2), RING, WINDOW), {})


def _joined(n: int) -> Callable[[], Any]:
    return lambda: ((_ints(-1, 90, n, WINDOW), _ints(-1, 90, n, 512), 999), {})
