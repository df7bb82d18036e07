"""``meta.draft_inputs``: rows, slots and visible keys of a block drafter (``spec/model.md`` 2.11)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require_equal
from deepinfer_core.conformance.model_sizes import BOTH, RELEASED, SMALL, ModelSizes
from deepinfer_core.conformance.reference import draft as reference

pytestmark = [pytest.mark.op("meta.draft_inputs"), pytest.mark.needs("op:meta.draft_inputs")]


def options_of(sizes: ModelSizes, block: int) -> dict[str, Any]:
    return {"block": block, "window": sizes.window, "ring": sizes.ring, "noise": sizes.vocab - 9,
            "vocab_size": sizes.vocab}  # fmt: skip


def compare(backend: Any, device: Any, check: Any, rows: list[list[int]], options: dict[str, Any], case: str) -> None:
    """``rows``: sampled token, last known position, slot of each request."""
    columns = [[row[c] for row in rows] for c in range(3)]
    got = backend.ops["meta.draft_inputs"](
        *(torch.tensor(c, dtype=torch.int32, device=device) for c in columns), **options
    )
    expected = reference.draft_inputs(*columns, **options)
    require_equal(sorted(got), sorted(expected), "fields of the draft rows", op="meta.draft_inputs", case=case)
    widths = {"window_index": options["window"], "draft_index": options["block"]}
    for name, values in expected.items():
        require_equal(got[name].dtype, torch.int32, f"dtype of {name}", op="meta.draft_inputs", case=case)
        wanted = torch.tensor(values, dtype=torch.int64)
        check(got[name], wanted.reshape(-1, widths[name]) if name in widths else wanted, case=case, field=name)


@pytest.mark.level("smoke")
@pytest.mark.parametrize("sizes", BOTH, ids=str)
@pytest.mark.parametrize("block", [1, 5])
def test_a_block_starts_behind_the_last_known_position(
    backend: Any, device: Any, tolerance: Any, sizes: ModelSizes, block: int
) -> None:
    window, ring = sizes.window, sizes.ring
    ends = [0, 1, window - 2, window - 1, window, ring - 1, ring, ring + 1, 7 * ring + 3, 10**6]
    rows = [[(i * 13) % sizes.vocab, end, len(ends) - i] for i, end in enumerate(ends)]
    rows += [[-1, 9, 30], [sizes.vocab, 9, 31], [sizes.vocab - 1, 9, 32], [0, 9, 0]]
    for part in (rows, rows[:1], []):
        compare(
            backend, device, tolerance("meta.draft_inputs"), part, options_of(sizes, block), f"{len(part)} requests"
        )


@pytest.mark.needs("feature:batch_invariant")
def test_draft_rows_are_the_same_alone_and_in_a_batch(backend: Any, device: Any, generator: Any) -> None:
    options = options_of(SMALL, 4)
    data = torch.tensor([[5 + i, i * 9, 12 - i] for i in range(9)], dtype=torch.int32, device=device)

    def run(rows: torch.Tensor) -> torch.Tensor:
        got = backend.ops["meta.draft_inputs"](*data[rows].unbind(1), **options)
        return torch.cat([got[name].reshape(len(rows), -1) for name in sorted(got)], dim=1)

    require_row_invariant("meta.draft_inputs", run, 9, generator)


@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(6))
def test_random_blocks_start_behind_the_last_known_position(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    generator = rng(7700 + seed)
    sizes = (SMALL, RELEASED)[seed % 2]
    rows = torch.stack(
        [torch.randint(-2, sizes.vocab + 2, (50,), generator=generator),
         torch.randint(0, 10 * sizes.ring, (50,), generator=generator), torch.randperm(50, generator=generator)], 1
    ).tolist()  # fmt: skip
    compare(backend, device, tolerance("meta.draft_inputs"), rows, options_of(sizes, 1 + seed), "50 requests")
