"""``meta.*``: index rows, slots and per-row fields from compact ones, integer by integer (``spec/kernels.md`` 2.5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.model_sizes import BOTH, SMALL, ModelSizes
from deepinfer_core.conformance.reference import meta as reference

BIG = 2**31 - 1


def i32(values: Any, device: Any, columns: int | None = None) -> Tensor:
    tensor = torch.tensor(values, dtype=torch.int32, device=device)
    return tensor if columns is None else tensor.reshape(-1, columns)


def randint(generator: torch.Generator, low: int, high: int, *shape: int) -> list[Any]:
    """Integers of ``[low, high]`` as nested lists."""
    out: list[Any] = torch.randint(low, high + 1, shape, generator=generator).tolist()
    return out


def compare(check: Any, got: Tensor, expected: Sequence[Any], width: int | None = None, **facts: object) -> None:
    """Integers must be equal, and int32."""
    __tracebackhide__ = True
    require_equal(got.dtype, torch.int32, "metadata is int32", **facts)
    wanted = torch.tensor(expected, dtype=torch.int64)
    check(got, wanted if width is None else wanted.reshape(-1, width), **facts)


PIVOTS = {
    "none": [],
    "one": [[5, 3, 40, 4]],
    "empty runs": [[0, 0, 0, 0], [7, 0, 90, 2], [7, 2, 90, 0]],
    "full": [[0, 6, 50, 6], [BIG - 5, 6, 0, 6], [3, 12, 9, 0], [3, 0, BIG - 11, 12]],
    "ragged": [[i, i % 5, 100 + i, (3 * i) % 8] for i in range(23)],
}


@pytest.mark.op("meta.window_index_prefill")
@pytest.mark.needs("op:meta.window_index_prefill")
@pytest.mark.level("smoke")
@pytest.mark.parametrize("case", PIVOTS)
def test_two_runs_become_one_row_of_indices(backend: Any, device: Any, tolerance: Any, repeat: Any, case: str) -> None:
    pivots = PIVOTS[case]
    got = repeat("meta.window_index_prefill", i32(pivots, device, 4), 12)
    compare(tolerance("meta.window_index_prefill"), got, reference.window_index_prefill(pivots, 12), 12, case=case)


@pytest.mark.op("meta.window_index_decode")
@pytest.mark.needs("op:meta.window_index_decode")
@pytest.mark.level("smoke")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
def test_windows_wrap_inside_their_ring(
    backend: Any, device: Any, tolerance: Any, repeat: Any, sizes: ModelSizes
) -> None:
    ring, window = sizes.ring, sizes.window
    rows = []
    for slot in (0, 1, 4, 1000):
        for p in (0, 1, window - 1, window, ring - 1, ring, ring + 1, 2 * ring - 1, 5 * ring + 3):
            length = min(p + 1, window)
            rows.append([slot * ring + (p + 1 - length) % ring, length])
    rows += [[3 * ring + 2, 0], [3 * ring, window], [4 * ring - 1, window]]
    for case, part in (("all", rows), ("one", rows[:1]), ("none", rows[:0])):
        got = repeat("meta.window_index_decode", i32(part, device, 2), ring, window)
        expected = reference.window_index_decode(part, ring, window)
        compare(tolerance("meta.window_index_decode"), got, expected, window, case=case)


@pytest.mark.op("meta.compressed_index")
@pytest.mark.needs("op:meta.compressed_index")
@pytest.mark.level("smoke")
def test_offsets_become_consecutive_indices(backend: Any, device: Any, tolerance: Any, repeat: Any) -> None:
    rows = [[0, 0], [0, 9], [17, 1], [3, 8], [1000, 4], [2**30, 9]]
    for base in (0, 5, 2**29):
        for case, part in (("all", rows), ("one", rows[1:2]), ("none", [])):
            got = repeat("meta.compressed_index", i32(part, device, 2), 9, base=base)
            expected = reference.compressed_index(part, 9, base=base)
            compare(tolerance("meta.compressed_index"), got, expected, 9, case=f"{case}, base {base}")


@pytest.mark.op("meta.compressed_index")
@pytest.mark.needs("op:meta.compressed_index")
@pytest.mark.parametrize("per_block", [1, 8, 64])
def test_offsets_in_table_space_become_slots(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, per_block: int
) -> None:
    columns = 4
    tables = randint(generator, 0, 60, 7, columns)
    tables[3] = [30_000_000 // per_block] * columns
    lengths = [0, 1, per_block, per_block * columns, min(per_block + 1, per_block * columns), 3, 2]
    rows = [[t * columns * per_block, n] for t, n in enumerate(lengths)]
    width = per_block * columns
    for base in (0, 11):
        got = repeat(
            "meta.compressed_index", i32(rows, device), width, base=base, block_table=i32(tables, device),
            per_block=per_block,
        )  # fmt: skip
        expected = reference.compressed_index(rows, width, base=base, tables=tables, per_block=per_block)
        compare(tolerance("meta.compressed_index"), got, expected, case=f"base {base}")


@pytest.mark.op("meta.index_cat")
@pytest.mark.needs("op:meta.index_cat")
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("w", "k"), [(4, 3), (1, 1), (128, 512), (4, 0), (0, 3)])
def test_compressed_indices_move_behind_the_window(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, w: int, k: int
) -> None:
    for rows, offset in ((0, 9), (1, 0), (5, 9), (3, 2**30)):
        window, compressed = randint(generator, -1, 50, rows, w), randint(generator, -1, 50, rows, k)
        args = (i32(window, device).reshape(rows, w), i32(compressed, device).reshape(rows, k), offset)
        got = repeat("meta.index_cat", *args)
        expected = reference.index_cat(window, compressed, offset)
        compare(tolerance("meta.index_cat"), got.reshape(-1), [i for r in expected for i in r], case=f"{rows} rows")
        require_equal(tuple(got.shape), (rows, w + k), "shape of the joined rows", op="meta.index_cat")


@pytest.mark.op("meta.logical_to_slot")
@pytest.mark.needs("op:meta.logical_to_slot")
@pytest.mark.level("smoke")
@pytest.mark.parametrize("per_block", [1, 16, 64, 128])
def test_entries_become_slots_through_the_table_of_their_row(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any, per_block: int
) -> None:
    columns, k = 3, 12
    for rows in (0, 1, 6):
        tables = randint(generator, 0, 5000, rows, columns)
        entries = randint(generator, -1, columns * per_block - 1, rows, k)
        for row in entries[:1]:
            row[:6] = [0, columns * per_block - 1, -1, per_block - 1, min(per_block, columns * per_block - 1), -7]
        args = (i32(entries, device).reshape(rows, k), i32(tables, device).reshape(rows, columns), per_block)
        check = tolerance("meta.logical_to_slot")
        got = repeat("meta.logical_to_slot", *args)
        compare(check, got, reference.logical_to_slot(entries, tables, per_block), k, case=f"{rows} rows")
        context = randint(generator, 0, columns * per_block, rows)
        beyond = [[*row[:-2], BIG, columns * per_block] for row in entries]  # past the table, and past the context
        got = repeat(
            "meta.logical_to_slot", i32(beyond, device).reshape(rows, k), *args[1:], context=i32(context, device)
        )
        expected = reference.logical_to_slot(beyond, tables, per_block, context)
        compare(check, got, expected, k, case=f"{rows} rows, context")


@pytest.mark.op("meta.block_tables")
@pytest.mark.needs("op:meta.block_tables")
@pytest.mark.level("smoke")
def test_rows_get_the_table_of_their_request_or_null_blocks(
    backend: Any, device: Any, generator: Any, tolerance: Any, repeat: Any
) -> None:
    tables = randint(generator, 1, 900, 4, 5)
    nobody = reference.NO_REQUEST
    for queries in ([], [2], [0, 1, 2, 3], [3, 3, 0, nobody, 1, 1, 1, nobody], [nobody, nobody], [0, 1, nobody, 3]):
        got = repeat("meta.block_tables", i32(tables, device), i32(queries, device))
        expected = reference.block_tables(tables, queries)
        compare(tolerance("meta.block_tables"), got, expected, 5, case=f"queries {queries}")


IDENTITY_LIKE = [[0, 2, 1, 3], [0, 0, 2, 3], [0, 1, 2, 3], [3, 2, 1, 0], [0, 1, 2], [0, -1, 2, 3], [0, 1, 2, 4], [],
                 [-5, 9, 2**30, 0, 0, 3, 3]]  # fmt: skip


@pytest.mark.op("meta.gather_rows")
@pytest.mark.needs("op:meta.gather_rows")
@pytest.mark.level("smoke")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64, torch.bfloat16, torch.float32, torch.bool],
                         ids=str)  # fmt: skip
@pytest.mark.parametrize("tail", [(), (3,), (2, 5)], ids=str)
def test_rows_are_gathered_and_absent_ones_are_zero_bytes(
    backend: Any, device: Any, tolerance: Any, repeat: Any, dtype: Any, tail: tuple[int, ...]
) -> None:
    if dtype == torch.float32:
        x = torch.full((4, *tail), float("nan"))  # times zero it is no zero
        x[1:3] = float("inf")
    else:
        count = 4 * int(torch.tensor(tail).prod()) if tail else 4
        x = (torch.arange(count) % 200 + 1).reshape(4, *tail).to(dtype)
    for idx in IDENTITY_LIKE:
        rows = [x[i] if 0 <= i < 4 else torch.zeros_like(x[0]) for i in idx]
        expected = torch.stack(rows) if rows else x[:0]
        got = repeat("meta.gather_rows", x.to(device), i32(idx, device))
        require_equal(got.dtype, dtype, "a gather keeps the dtype", op="meta.gather_rows")
        tolerance("meta.gather_rows")(got.to(torch.float32), expected.to(torch.float32), case=f"rows {idx}")
    empty = repeat("meta.gather_rows", x[:0].to(device), i32([0, -1], device))
    tolerance("meta.gather_rows")(empty.to(torch.float32), torch.zeros(2, *tail), case="from no rows")


@pytest.mark.op("meta.gather_rows")
@pytest.mark.needs("op:meta.gather_rows")
def test_gathered_rows_are_no_view_of_their_source(backend: Any, device: Any, tolerance: Any) -> None:
    x = torch.arange(12.0, device=device).reshape(4, 3)
    got = backend.ops["meta.gather_rows"](x, i32([0, 1, 2, 3], device))
    got.zero_()
    tolerance("meta.gather_rows")(x, torch.arange(12.0).reshape(4, 3), case="the source, after the result was changed")


def metadata_case(
    generator: torch.Generator, sizes: ModelSizes, requests: int, *, longest: int, placeholders: bool
) -> tuple[dict[str, list[Any]], list[bool] | None]:
    """Requests of 1 to K + 1 rows, lengths from nothing to ``longest``, slots and blocks that are all different."""
    q = randint(generator, 1, sizes.drafts + 1, requests)
    k = [n + x for n, x in zip(q, randint(generator, 0, longest - sizes.drafts - 1, requests), strict=True)]
    columns = -(-longest // sizes.block)
    tables = (torch.randperm(max(1, requests * columns), generator=generator)[: requests * columns] + 1).tolist()
    fields = {
        "seqlens_q": q,
        "seqlens_k": k,
        "block_tables": [tables[i * columns : (i + 1) * columns] for i in range(requests)],
        "state_slot": torch.randperm(requests + 3, generator=generator)[:requests].tolist(),
        "swa_slot": torch.randperm(requests + 5, generator=generator)[:requests].tolist(),
    }
    valid = [bool(b) for b in randint(generator, 0, 3, sum(q))] if placeholders else None
    return fields, valid


def expand(backend: Any, device: Any, fields: dict[str, Any], valid: list[bool] | None, **options: Any) -> Any:
    columns = len(fields["block_tables"][0]) if fields["block_tables"] else 2
    return backend.ops["meta.decode_metadata"](
        i32(fields["seqlens_q"], device),
        i32(fields["seqlens_k"], device),
        i32(fields["block_tables"], device, columns),
        i32(fields["state_slot"], device),
        i32(fields["swa_slot"], device),
        valid=None if valid is None else torch.tensor(valid, dtype=torch.bool, device=device),
        **options,
    )


def judge_metadata(check: Any, got: Any, expected: dict[str, Any], case: str) -> None:
    """Every field by name; one that has a value for each ratio, ratio by ratio."""
    __tracebackhide__ = True
    op = "meta.decode_metadata"
    require_equal(sorted(got), sorted(expected), "fields of the metadata", op=op, case=case)
    for name, values in expected.items():
        if isinstance(values, dict):
            require_equal(sorted(got[name]), sorted(values), f"ratios of {name}", op=op, case=case)
        for ratio, rows in values.items() if isinstance(values, dict) else ((None, values),):
            found = got[name] if ratio is None else got[name][ratio]
            wanted = torch.tensor(rows, dtype=torch.int64).reshape(found.shape)
            dtype = torch.bool if name == "valid_token_mask" else torch.int32
            require_equal(found.dtype, dtype, f"dtype of {name}", op=op, case=case)
            check(found, wanted, case=case, field=name if ratio is None else f"{name}[{ratio}]")


@pytest.mark.op("meta.decode_metadata")
@pytest.mark.needs("op:meta.decode_metadata")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("placeholders", [False, True], ids=["real", "placeholders"])
def test_metadata_of_rows_follow_from_requests(
    backend: Any, device: Any, generator: Any, tolerance: Any, sizes: ModelSizes, placeholders: bool
) -> None:
    ratios = {"ratios_sparse": (1, 2), "ratios_dense": (2, 4)}
    options: dict[str, Any] = {"block_size": sizes.block, "window": sizes.window, "ring": sizes.ring, **ratios}
    for requests in (1, 2, 9):
        fields, valid = metadata_case(generator, sizes, requests, longest=sizes.block * 3, placeholders=placeholders)
        got = expand(backend, device, fields, valid, **options)
        expected = reference.decode_metadata(*fields_in_order(fields), valid=valid, **options)
        judge_metadata(tolerance("meta.decode_metadata"), got, expected, f"{requests} requests")


def fields_in_order(fields: dict[str, Any]) -> list[Any]:
    return [fields[k] for k in ("seqlens_q", "seqlens_k", "block_tables", "state_slot", "swa_slot")]


@pytest.mark.op("meta.decode_metadata")
@pytest.mark.needs("op:meta.decode_metadata")
@pytest.mark.level("smoke")
def test_metadata_at_the_edges_of_blocks_windows_and_rings(backend: Any, device: Any, tolerance: Any) -> None:
    sizes, ends = SMALL, []
    for edge in (1, 2, sizes.window, sizes.ring, sizes.block, 2 * sizes.block):
        ends += [edge, edge + 1] if edge < 2 * sizes.block else [edge]
    count = len(ends)
    fields = {
        "seqlens_q": [min(2, k) for k in ends],
        "seqlens_k": ends,
        "block_tables": [[7 * i + 1, 7 * i + 2] for i in range(count)],
        "state_slot": list(range(count)),
        "swa_slot": [count - i for i in range(count)],
    }
    options: dict[str, Any] = {"block_size": sizes.block, "window": sizes.window, "ring": sizes.ring,
               "ratios_sparse": (2,), "ratios_dense": (1,)}  # fmt: skip
    got = expand(backend, device, fields, None, **options)
    judge_metadata(
        tolerance("meta.decode_metadata"), got, reference.decode_metadata(*fields_in_order(fields), **options), "edges"
    )


@pytest.mark.op("meta.decode_metadata")
@pytest.mark.needs("op:meta.decode_metadata")
@pytest.mark.parametrize("window", [0, 32])
def test_metadata_of_no_requests_are_empty_and_of_no_window_lack_it(
    backend: Any, device: Any, generator: Any, tolerance: Any, window: int
) -> None:
    fields, _ = metadata_case(generator, SMALL, 0, longest=256, placeholders=False)
    options: dict[str, Any] = {"block_size": 128, "window": window, "ring": 37, "ratios_sparse": (), "ratios_dense": ()}
    for requests in (0, 3):
        if requests:
            fields, _ = metadata_case(generator, SMALL, requests, longest=256, placeholders=False)
        got = expand(backend, device, fields, None, **options)
        expected = reference.decode_metadata(*fields_in_order(fields), **options)
        judge_metadata(tolerance("meta.decode_metadata"), got, expected, f"{requests} requests, window {window}")


@pytest.mark.op("meta.logical_to_slot", "meta.window_index_decode", "meta.window_index_prefill")
@pytest.mark.needs("feature:batch_invariant")
def test_index_rows_are_the_same_alone_and_in_a_batch(backend: Any, device: Any, generator: Any) -> None:
    entries, tables = i32(randint(generator, -1, 95, 11, 7), device), i32(randint(generator, 0, 99, 11, 3), device)
    windows, pivots = i32(randint(generator, 0, 30, 11, 2), device), i32(randint(generator, 0, 9, 11, 4), device)
    calls = {
        "meta.logical_to_slot": lambda r: backend.ops["meta.logical_to_slot"](entries[r], tables[r], 32),
        "meta.window_index_decode": lambda r: backend.ops["meta.window_index_decode"](windows[r], 37, 32),
        "meta.window_index_prefill": lambda r: backend.ops["meta.window_index_prefill"](pivots[r], 20),
    }
    for op, run in calls.items():
        require_row_invariant(op, run, 11, generator)


@pytest.mark.op("meta.decode_metadata")
@pytest.mark.needs("op:meta.decode_metadata")
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(12))
def test_metadata_of_random_steps_follow_from_requests(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    generator = rng(5200 + seed)
    sizes = BOTH[seed % 2]
    requests = randint(generator, 1, 40, 1)[0]
    fields, valid = metadata_case(
        generator, sizes, requests, longest=sizes.block * randint(generator, 1, 9, 1)[0], placeholders=seed % 3 == 0
    )
    sparse, dense = ((1, 2), (2,), ())[seed % 3], ((), (1,), (1, 2, 4, 8))[seed % 3]
    options: dict[str, Any] = {"block_size": sizes.block, "window": sizes.window, "ring": sizes.ring,
               "ratios_sparse": sparse, "ratios_dense": dense}  # fmt: skip
    got = expand(backend, device, fields, valid, **options)
    expected = reference.decode_metadata(*fields_in_order(fields), valid=valid, **options)
    judge_metadata(tolerance("meta.decode_metadata"), got, expected, f"{requests} requests")
