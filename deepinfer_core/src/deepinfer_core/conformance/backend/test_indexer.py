"""``index.*``: scores of compressed keys, the best of them, candidates (``spec/kernels.md`` 2.4, ``model.md`` 2.7)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import tolerances
from deepinfer_core.conformance.arena import INDEX, LAYERS, UNITS, Arena, random_entries, specs
from deepinfer_core.conformance.backend.offered import partner, require_format
from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model_sizes import BOTH, SMALL, ModelSizes
from deepinfer_core.conformance.reference import indexer as reference

LOGITS, TOPK = "index.logits", "index.topk"
INDEX_FORMATS = ("index_fp4", "index_mxfp8", "index_fp8", "bf16")
GROUP = 32
SCORES = (torch.float32, torch.bfloat16)


def claimed(*formats: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.needs(f"kv:{name}"), id=name) for name in formats]


def queries(sizes: ModelSizes, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """bf16 ``[T, h, d]`` that the FP4 cast of queries leaves as they are, and weights ``[T, h]`` of either sign.

    Each group has a code of 6, the largest, so its scale is the power of two that the values were made with.
    """
    codes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    shape = (rows, sizes.index_heads, sizes.index_width // GROUP, GROUP)
    values = codes[torch.randint(0, 8, shape, generator=generator)]
    values *= 1 - 2 * torch.randint(0, 2, shape, generator=generator)
    values[..., 7] = 6.0
    values = torch.ldexp(values, torch.randint(-3, 2, shape[:3], generator=generator).unsqueeze(-1))
    weights = torch.randn(rows, sizes.index_heads, generator=generator).bfloat16() / 64
    return values.flatten(2).bfloat16(), weights


def judge(check: Any, got: Tensor, expected: list[Tensor], columns: list[list[int]], **facts: object) -> None:
    """Row by row, the named columns only: what lies behind the visible entries is undefined. A library's kernel may
    round scores to bf16 at the end (``spec/kernels.md`` 2.4)."""
    __tracebackhide__ = True
    require(got.dtype in SCORES, "index scores are fp32 or bf16", op=LOGITS, **facts, got=got.dtype)
    host = got.cpu()
    for t, (row, where) in enumerate(zip(expected, columns, strict=True)):
        check(host[t, where], row, row=t, **facts)


class Paged:
    """Index keys of some sequences behind block tables; whatever no row may see is NaN."""

    def __init__(self, backend: Any, sizes: ModelSizes, fmt: str, generator: torch.Generator, device: Any,
                 lengths: list[int], layer: int = LAYERS[0]) -> None:  # fmt: skip
        require_format(backend, "index", fmt)
        made = specs(partner(backend, "kv"), fmt, width=sizes.width, index_width=sizes.index_width, block=sizes.block)
        caches = backend.ops["cache.alloc"](made, dict.fromkeys(("main", "index", "swa", "state"), UNITS))
        self.view = backend.ops["cache.view"](caches, INDEX, layer)
        self.arena = Arena.poisoned(self.view, sizes.index_width)
        page, longest = int(self.view.page), max(lengths, default=0)
        order = torch.randperm(UNITS - 1, generator=generator) + 1  # block 0 is nobody's
        used = order[: -(-longest // page)].tolist()
        columns = max(1, len(used)) + 1  # one block more than anybody has; the null block fills it
        self.tables = torch.zeros(len(lengths), columns, dtype=torch.int32)
        self.tables[:, : len(used)] = torch.tensor(used, dtype=torch.int32)
        slots = [used[e // page] * page + e % page for e in range(longest)]
        self.arena.write(slots, random_entries(longest, self.arena.layout, sizes.index_width, generator))
        self.arena.upload()
        self.keys = self.arena.values(slots)
        self.lengths = torch.tensor(lengths, dtype=torch.int32, device=device)
        self.tables = self.tables.to(device)


@pytest.mark.op(LOGITS)
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("fmt", claimed(*INDEX_FORMATS))
def test_paged_scores_are_sums_over_heads(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, fmt: str, sizes: ModelSizes
) -> None:
    for layer in LAYERS:
        page = sizes.block // (2 if layer == LAYERS[0] else 1)
        lengths = [0, 1, 2, page - 1, page, page + 1, 2 * page, 3 * page - 5, 31, 33]

        def visible(scores: Tensor, lengths: list[int] = lengths) -> list[Tensor]:
            return [row[:n] for row, n in zip(scores, lengths, strict=True)]

        paged = Paged(backend, sizes, fmt, generator, device, lengths, layer)
        q, weights = queries(sizes, len(lengths), generator)
        expected = [reference.scores(q[t], weights[t], paged.keys[:n]) for t, n in enumerate(lengths)]
        quantised = backend.ops["quant.cast_per_token"](q.to(device), fmt="e2m1", group=GROUP, sf="ue8m0")
        for name, query in (("plain", q.to(device)), ("quantised", quantised)):
            for max_k in (None, 3 * page):
                got = repeat(LOGITS, query, weights.to(device), paged.view, context_lens=paged.lengths,
                             block_table=paged.tables, max_k=max_k, defined=visible)  # fmt: skip
                width = max(lengths) if max_k is None else max_k
                require_equal(tuple(got.shape), (len(lengths), width), "shape of the scores", op=LOGITS)
                judge(tolerance(LOGITS), got, expected, [list(range(n)) for n in lengths],
                      case=f"{name} query, layer {layer}, max_k {max_k}")  # fmt: skip


@pytest.mark.op(LOGITS)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
def test_scores_of_gathered_keys_start_at_the_first_key_of_the_row(
    backend: Any, device: Any, generator: Any, tolerance: Any, sizes: ModelSizes
) -> None:
    keys = torch.randn(120, sizes.index_width, generator=generator).bfloat16()
    spans = [(0, 1), (0, 7), (0, 40), (40, 40), (40, 73), (73, 120), (73, 119), (119, 120), (0, 120), (3, 90)]
    q, weights = queries(sizes, len(spans), generator)
    expected = [reference.scores(q[t], weights[t], keys[a:b]) for t, (a, b) in enumerate(spans)]
    columns = [list(range(b - a)) for a, b in spans]
    ks, ke = (torch.tensor(v, dtype=torch.int32, device=device) for v in zip(*spans, strict=True))
    for max_k in (None, 120):
        got = backend.ops[LOGITS](q.to(device), weights.to(device), keys.to(device), span=(ks, ke), max_k=max_k)
        judge(tolerance(LOGITS), got, expected, columns, case=f"max_k {max_k}")
    cast = backend.ops["quant.cast_per_token"](keys.to(device), fmt="e4m3", group=32, sf="ue8m0")
    values = backend.ops["quant.dequantize"](cast, dtype=torch.float32).cpu()
    expected = [reference.scores(q[t], weights[t], values[a:b]) for t, (a, b) in enumerate(spans)]
    got = backend.ops[LOGITS](q.to(device), weights.to(device), cast, span=(ks, ke))
    judge(tolerance(LOGITS), got, expected, columns, case="quantised keys")
    # The model's own form: query and keys in FP4.
    query = backend.ops["quant.cast_per_token"](q.to(device), fmt="e2m1", group=GROUP, sf="ue8m0")
    cast = backend.ops["quant.cast_per_token"](keys.to(device), fmt="e2m1", group=GROUP, sf="ue8m0")
    values = backend.ops["quant.dequantize"](cast, dtype=torch.float32).cpu()
    expected = [reference.scores(q[t], weights[t], values[a:b]) for t, (a, b) in enumerate(spans)]
    for kind in (torch.bfloat16, torch.float32):
        got = backend.ops[LOGITS](query, weights.to(device, kind), cast, span=(ks, ke), max_k=120)
        judge(tolerance(LOGITS), got, expected, columns, case=f"query and keys in FP4, weights of {kind}")
    none = backend.ops[LOGITS](
        q[:0].to(device), weights[:0].to(device), keys.to(device), span=(ks[:0], ke[:0]), max_k=9
    )
    require_equal(tuple(none.shape), (0, 9), "shape of the scores of no rows", op=LOGITS)


@pytest.mark.op(LOGITS)
@pytest.mark.parametrize("block", [4, 8])
def test_scores_outside_candidate_blocks_are_never_chosen(
    backend: Any, device: Any, generator: Any, tolerance: Any, block: int
) -> None:
    lengths = [60, 1, 33, 0, 59]
    paged = Paged(backend, SMALL, partner(backend, "index"), generator, device, lengths)
    q, weights = queries(SMALL, len(lengths), generator)
    candidates = [[0, 3, 7, -1], [0, -1, -1, -1], [1, 2, 8, -1], [-1] * 4, [14 // (block // 4), -1, -1, -1]]
    tensor = torch.tensor(candidates, dtype=torch.int32, device=device)
    got = backend.ops[LOGITS](q.to(device), weights.to(device), paged.view, context_lens=paged.lengths,
                              block_table=paged.tables, candidates=tensor, block=block)  # fmt: skip
    inside = [
        [e for e in range(n) if reference.in_candidates(e, c, block)] for n, c in zip(lengths, candidates, strict=True)
    ]
    expected = [reference.scores(q[t], weights[t], paged.keys[where]) for t, where in enumerate(inside)]
    judge(tolerance(LOGITS), got, expected, inside, case=f"blocks of {block}")
    host = got.cpu()
    for t, (n, where) in enumerate(zip(lengths, inside, strict=True)):
        outside = [e for e in range(n) if e not in where]
        require(bool((host[t, outside] == -math.inf).all()), "an entry outside the candidates has a score", op=LOGITS,
                row=t, got=host[t, outside].tolist()[:8], expected="-inf")  # fmt: skip


@pytest.mark.op(LOGITS)
@pytest.mark.level("smoke")
def test_scores_go_into_out(backend: Any, device: Any, generator: Any, tolerance: Any, guarded: Any) -> None:
    lengths = [9, 70]
    paged = Paged(backend, SMALL, partner(backend, "index"), generator, device, lengths)
    q, weights = queries(SMALL, 2, generator)
    out = guarded((2, 70), torch.float32, name="out")
    got = backend.ops[LOGITS](q.to(device), weights.to(device), paged.view, context_lens=paged.lengths,
                              block_table=paged.tables, out=out)  # fmt: skip
    require(got is out, "out is not what comes back", op=LOGITS)
    expected = [reference.scores(q[t], weights[t], paged.keys[:n]) for t, n in enumerate(lengths)]
    judge(tolerance(LOGITS), out, expected, [list(range(n)) for n in lengths], case="out")


@pytest.mark.op(LOGITS)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
def test_scores_have_the_same_bits_alone_in_a_batch_and_in_prefill(
    backend: Any, device: Any, generator: Any, sizes: ModelSizes
) -> None:
    lengths = [40, 3, 64, 17, 90, 1, 33]
    paged = Paged(backend, sizes, partner(backend, "index"), generator, device, lengths)
    q, weights = queries(sizes, len(lengths), generator)
    q, weights = q.to(device), weights.to(device)
    keys = paged.keys.to(torch.bfloat16).to(device)
    zero = torch.zeros_like(paged.lengths)
    columns = torch.arange(90, device=device)

    def cut(scores: Tensor, rows: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(scores, (0, 90 - scores.shape[1]))
        return padded.masked_fill(columns >= paged.lengths[rows].unsqueeze(1), 0.0)

    def decode(rows: Tensor) -> Tensor:
        r = rows.to(device)
        return cut(backend.ops[LOGITS](q[r], weights[r], paged.view, context_lens=paged.lengths[r],
                                       block_table=paged.tables[r]), r)  # fmt: skip

    def prefill(rows: Tensor) -> Tensor:
        r = rows.to(device)
        return cut(backend.ops[LOGITS](q[r], weights[r], keys, span=(zero[r], paged.lengths[r])), r)

    for name, run in (("decode", decode), ("prefill", prefill)):
        require_row_invariant(LOGITS, run, len(lengths), generator, part=name)


def ranks(generator: torch.Generator, kind: str, rows: int, n: int) -> Tensor:
    """Scores fp32 ``[rows, n]``."""
    if kind == "distinct":
        return torch.stack([torch.randperm(n, generator=generator) for _ in range(rows)]).float() / 64 - 7
    if kind == "ties":
        return torch.randint(-2, 3, (rows, n), generator=generator).float()
    if kind == "equal":
        return torch.full((rows, n), -0.5)
    out = torch.randn(rows, n, generator=generator)
    holes = torch.rand(rows, n, generator=generator)
    out[holes < 0.5] = -math.inf
    out[(holes > 0.5) & (holes < 0.55)] = math.inf
    out[(holes > 0.9) & (holes < 0.92)] = math.nan
    return out


@pytest.mark.op(TOPK)
@pytest.mark.parametrize("kind", ["distinct", "ties", "equal", "special"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 16), (16, 16), (17, 16), (60, 16), (90, 1), (2047, 512), (2048, 512),
                                      (2049, 512), (8193, 512)])  # fmt: skip
def test_topk_takes_the_best_and_of_equals_the_first(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, kind: str, n: int, k: int
) -> None:
    limit = backend.capabilities.max_topk
    if limit and k > limit:
        pytest.skip(f"not offered: top-k of {k}, at most {limit}")
    rows = 6 if n < 1000 else 3
    scores = ranks(generator, kind, rows, n)
    ends = [n, max(n - 1, 0), k, 0, n // 2, n][:rows] if n < 1000 else [n, n - 3, n // 2]
    end = torch.tensor(ends, dtype=torch.int32, device=device)
    expected = [reference.topk(scores[t].tolist(), k, min(e, n)) for t, e in enumerate(ends)]
    wanted = torch.tensor(expected)
    # Stronger than class S: this protocol asks for ascending order and for the smaller index among equals.
    exact = tolerance(TOPK, "B")
    got = repeat(TOPK, scores.to(device), k, end=end)
    require_equal(got.dtype, torch.int32, "indices are int32", op=TOPK)
    exact(got, wanted, case=kind)
    offset = torch.arange(rows, dtype=torch.int32) * 1000
    moved = torch.where(wanted < 0, wanted, wanted + offset.unsqueeze(1))
    got, values = repeat(TOPK, scores.to(device), k, end=end, offset=offset.to(device), want_values=True)
    exact(got, moved, case=f"{kind}, offset")
    known = torch.where(wanted < 0, -math.inf, scores.gather(1, wanted.clamp(min=0)))
    exact(values, known.double(), case=f"{kind}, values")


@pytest.mark.op(TOPK)
@pytest.mark.parametrize("kind", ["ties", "equal", "special"])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (17, 16), (60, 16), (512, 16), (513, 512), (2049, 512)])
def test_topk_of_bf16_scores_takes_the_best_and_of_equals_the_first(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, kind: str, n: int, k: int
) -> None:
    """As a library's kernel of scores leaves them: also negative ones alone, beside which a padded column would win."""
    scores = (ranks(generator, kind, 5, n) - 9).bfloat16()
    ends = [n, n - 1, n // 2, 0, min(k, n)]
    end = torch.tensor(ends, dtype=torch.int32, device=device)
    wanted = torch.tensor([reference.topk(scores[t].tolist(), k, e) for t, e in enumerate(ends)])
    tolerance(TOPK, "B")(repeat(TOPK, scores.to(device), k, end=end), wanted, case=kind)
    offset = torch.arange(5, dtype=torch.int32) * 1000
    moved = torch.where(wanted < 0, wanted, wanted + offset.unsqueeze(1))
    got = repeat(TOPK, scores.to(device), k, end=end, offset=offset.to(device))
    tolerance(TOPK, "B")(got, moved, case=f"{kind}, offset")


@pytest.mark.op(TOPK)
@pytest.mark.level("smoke")
def test_topk_into_out_of_bf16_scores_and_of_no_rows(
    backend: Any, device: Any, generator: Any, tolerance: Any, guarded: Any
) -> None:
    scores = ranks(generator, "ties", 5, 40).bfloat16()
    end = torch.tensor([40, 3, 0, 39, 20], dtype=torch.int32, device=device)
    wanted = torch.tensor([reference.topk(scores[t].tolist(), 8, int(e)) for t, e in enumerate(end)])
    out = guarded((5, 8), torch.int32, name="out")
    got = backend.ops[TOPK](scores.to(device), 8, end=end, out=out)
    require(got is out, "out is not what comes back", op=TOPK)
    tolerance(TOPK, "B")(out, wanted, case="bf16 scores with ties")
    for rows, n in ((0, 40), (3, 0)):
        none = torch.zeros(rows, dtype=torch.int32, device=device)
        got = backend.ops[TOPK](torch.zeros(rows, n, device=device), 8, end=none)
        tolerance(TOPK, "B")(got, torch.full((rows, 8), -1), case=f"{rows} rows of {n}")


@pytest.mark.op(TOPK)
@pytest.mark.needs("feature:batch_invariant")
def test_topk_of_a_row_is_the_same_alone_and_in_a_batch(backend: Any, device: Any, generator: Any) -> None:
    scores, end = (
        ranks(generator, "ties", 7, 200).to(device),
        torch.tensor([200, 9, 16, 120, 0, 199, 64], device=device),
    )
    require_row_invariant(TOPK, lambda r: backend.ops[TOPK](scores[r], 16, end=end[r].int()), 7, generator)


@pytest.mark.op("index.block_max")
@pytest.mark.needs("op:index.block_max")
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("n", "block"), [(1, 4), (4, 4), (5, 4), (40, 8), (47, 8), (64, 16), (0, 8)])
def test_block_scores_are_the_largest_and_the_newest_block_wins(
    backend: Any, device: Any, generator: Any, tolerance: Any, n: int, block: int
) -> None:
    valid = sorted({0, 1, block - 1, block, block + 1, n - 1, n} & set(range(n + 1)))
    scores = torch.randn(len(valid), n, generator=generator) - 3
    if n > 6:
        scores[:, 2], scores[-1, 5] = 3.4e38, -math.inf
    best, counts = backend.ops["index.block_max"](
        scores.to(device), torch.tensor(valid, dtype=torch.int32, device=device), block
    )
    expected = [reference.block_max(scores[t].tolist(), v, block) for t, v in enumerate(valid)]
    check = tolerance("index.block_max")
    require_equal(counts.dtype, torch.int32, "counts are int32", op="index.block_max")
    check(counts, torch.tensor([c for _, c in expected]), case="counts")
    check(best.float(), torch.tensor([b for b, _ in expected], dtype=torch.float64).reshape(best.shape), case="scores")


@pytest.mark.op("index.restore")
@pytest.mark.needs("op:index.restore")
@pytest.mark.level("smoke")
@pytest.mark.parametrize("block", [4, 8, 16])
def test_compact_positions_become_entries_in_place(
    backend: Any, device: Any, generator: Any, tolerance: Any, block: int
) -> None:
    for rows, blocks, k in ((0, 4, 5), (1, 1, 3), (5, 4, 30)):
        candidates = torch.randint(0, 900, (rows, blocks), generator=generator).sort(1).values
        candidates[1::2, -2:] = -1  # fewer candidates than columns
        compact = torch.randint(-2, blocks * block + 3, (rows, k), generator=generator)
        for offset in (None, torch.arange(rows) * 7):
            tensor = compact.to(torch.int32).to(device)
            got = backend.ops["index.restore"](
                tensor, candidates.to(torch.int32).to(device), block,
                offset=None if offset is None else offset.to(torch.int32).to(device),
            )  # fmt: skip
            shifts = [0] * rows if offset is None else offset.tolist()
            expected = [
                reference.restore(compact[t].tolist(), candidates[t].tolist(), block, s) for t, s in enumerate(shifts)
            ]
            wanted = torch.tensor(expected, dtype=torch.int64).reshape(rows, k)
            check = tolerance("index.restore")
            check(got, wanted, case=f"{rows} rows, offset {offset is not None}")
            check(tensor, wanted, case="in place")


@pytest.mark.op("index.block_max", TOPK)
@pytest.mark.needs("op:index.block_max")
@pytest.mark.parametrize("blocks_kept", [1, 3])
def test_candidates_always_hold_the_newest_block(backend: Any, device: Any, generator: Any, blocks_kept: int) -> None:
    scores = (torch.randn(6, 50, generator=generator) * 5).to(device)
    valid = torch.tensor([50, 49, 48, 9, 1, 33], dtype=torch.int32, device=device)
    best, counts = backend.ops["index.block_max"](scores, valid, 8)
    chosen = backend.ops[TOPK](best, blocks_kept, end=counts).cpu()
    for t, newest in enumerate(((valid - 1) // 8).tolist()):
        require(newest in chosen[t].tolist(), "the newest block is no candidate", op="index.block_max", row=t,
                got=chosen[t].tolist(), expected=newest)  # fmt: skip


@pytest.mark.op(TOPK)
@pytest.mark.level("full")
@pytest.mark.parametrize(("n", "k"), [(100_000, 512), (100_000, 1024), (4097, 1024), (33_000, 16)])
def test_topk_of_very_many_is_a_full_stable_sort(
    backend: Any, device: Any, generator: Any, tolerance: Any, n: int, k: int
) -> None:
    limit = backend.capabilities.max_topk
    if limit and k > limit:
        pytest.skip(f"not offered: top-k of {k}, at most {limit}")
    scores = torch.stack([ranks(generator, kind, 1, n)[0] for kind in ("distinct", "ties", "equal", "special")])
    ends = torch.tensor([n, n - 77, n, n], dtype=torch.int32, device=device)
    wanted = torch.tensor([reference.topk(scores[t].tolist(), k, int(e)) for t, e in enumerate(ends)])
    tolerance(TOPK, "B")(backend.ops[TOPK](scores.to(device), k, end=ends), wanted, case=f"{k} of {n}")


@pytest.mark.op(LOGITS, TOPK, "index.block_max", "index.restore")
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(8))
def test_random_rows_choose_what_the_reference_chooses(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    """The whole selection; where two scores at the cut are as near as rounding, either entry is right."""
    generator = rng(9200 + seed)
    sizes = BOTH[seed % 4 == 3]
    lengths = torch.randint(0, 3 * sizes.block // 2, (12,), generator=generator).tolist()
    paged = Paged(backend, sizes, partner(backend, "index"), generator, device, lengths)
    q, weights = queries(sizes, len(lengths), generator)
    got = backend.ops[LOGITS](q.to(device), weights.to(device), paged.view, context_lens=paged.lengths,
                              block_table=paged.tables)  # fmt: skip
    expected = [reference.scores(q[t], weights[t], paged.keys[:n]) for t, n in enumerate(lengths)]
    judge(tolerance(LOGITS), got, expected, [list(range(n)) for n in lengths], case=f"lengths {lengths}")
    k = 1 + int(torch.randint(0, 40, (1,), generator=generator))
    chosen = backend.ops[TOPK](got, k, end=paged.lengths).cpu()
    host = got.cpu()
    for t, n in enumerate(lengths):
        tolerances.check(chosen[t], torch.tensor(reference.topk(host[t].tolist(), k, n)), "B", op=TOPK, row=t)
