"""``compress.*``: entries from groups of rows, and the rings that keep rows between steps (``spec/kernels.md`` 2.2)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attrs import define
from torch import Tensor

from deepinfer_core.conformance import tolerances
from deepinfer_core.conformance.arena import LAYERS, STATE, UNITS, Arena, specs
from deepinfer_core.conformance.backend.offered import partner
from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require
from deepinfer_core.conformance.model_sizes import RELEASED, SMALL, ModelSizes
from deepinfer_core.conformance.reference import compress as reference


@define
class History:
    """A sequence as the reference sees it: all rows by position, fp32 ``[L, 2, d]`` (score, latent)."""

    rows: Tensor
    slot: int
    length: int = 0

    def entry(self, number: int, ratio: int) -> Tensor:
        part = self.rows[number * ratio : (number + 1) * ratio]
        return torch.from_numpy(reference.entry(part[:, 0].numpy(), part[:, 1].numpy()))


class Rings:
    """The state of one layer inside the memory of all layers, NaN where nothing was written, and what it has to be."""

    def __init__(self, backend: Any, width: int, ring: int) -> None:
        made = specs(partner(backend, "kv"), partner(backend, "index"), width=width, state_ring=ring)
        caches = backend.ops["cache.alloc"](made, dict.fromkeys(("main", "index", "swa", "state"), UNITS))
        self.view = backend.ops["cache.view"](caches, STATE, LAYERS[1])
        self.tensor: Tensor = self.view.tensor
        self.arena = Arena.poisoned(self.view, 2 * width)
        self.expected = self.tensor.cpu().clone()

    def check(self, op: str, case: str) -> None:
        """Raise ConformanceFailure unless the rings, and everything beside them, are what they have to be."""
        __tracebackhide__ = True
        begin = self.tensor.storage_offset() * 4
        for unit in range(self.expected.shape[0]):
            at = begin + unit * int(self.view.block_stride)
            data = self.expected[unit].contiguous().view(torch.uint8).flatten()
            self.arena.raw[at : at + data.numel()] = data
        self.arena.expect(op, case=case)


def history(generator: torch.Generator, length: int, width: int, slot: int) -> History:
    rows = torch.randn(length, 2, width, generator=generator)
    rows[:, 0] *= 3  # far from the plain mean
    return History(rows, slot)


def on(device: Any, *values: list[int]) -> list[Tensor]:
    return [torch.tensor(v, dtype=torch.int32, device=device) for v in values]


def sums(values: list[int]) -> list[int]:
    out = [0]
    for v in values:
        out.append(out[-1] + v)
    return out


def prefill(
    backend: Any,
    rings: Rings,
    chunks: list[tuple[History, int]],
    ratio: int,
    device: Any,
    check: Any,
    *,
    dtype: torch.dtype = torch.float32,
    case: str = "",
    row_seq: bool = False,
    permuted: bool = False,
) -> None:
    """One step with a chunk of each history: its entries and the rings behind it are compared."""
    rows, expected, counts, lengths, reserved = [], [], [], [], []
    for h, count in chunks:
        end = h.length + count
        rows.append(h.rows[h.length : end])
        made = [h.entry(e, ratio) for e in reference.completed(h.length, end, ratio)]
        space = reference.reserved(h.length, end, ratio)
        width = h.rows.shape[2]
        expected += [*made, *[torch.zeros(width, dtype=torch.float64)] * (space - len(made))]
        reference.written(rings.expected[h.slot], h.rows[h.length : end], h.length)
        counts.append(count)
        lengths.append(end)
        reserved.append(space)
        h.length = end
    both = torch.cat(rows)
    kwargs: dict[str, Any] = {"dtype": dtype}
    if permuted:
        order = torch.randperm(len(both), generator=torch.Generator().manual_seed(len(both)))
        both = torch.empty_like(both).index_copy_(0, order, both)
        kwargs["perm"] = order.to(torch.int32).to(device)
    slots, cu_q, cu_k, cu_c = on(device, [h.slot for h, _ in chunks], sums(counts), sums(lengths), sums(reserved))
    owner = [i for i, space in enumerate(reserved) for _ in range(space)]
    got = backend.ops["compress.prefill"](
        both[:, 0].contiguous().to(device),
        both[:, 1].contiguous().to(device),
        rings.tensor,
        slots,
        on(device, owner)[0] if row_seq else None,
        cu_q,
        cu_k,
        cu_c,
        ratio,
        **kwargs,
    )
    reference_rows = torch.stack(expected)
    judge(check, got, reference_rows, dtype, case)
    rings.check("compress.prefill", case)


def judge(check: Any, got: Tensor, expected: Tensor, dtype: torch.dtype, case: str) -> None:
    """fp32: in the class of the op, row by row, because one wrong entry drowns in many right ones.

    bf16: a last bit that falls the other way costs a short row more than the class allows. So every value is within one
    rounding, and no more of them differ than make up the class over a long tensor.
    """
    __tracebackhide__ = True
    if dtype == torch.float32:
        check(got, expected, case=case, rows=True)
        return
    tolerances.check(got, expected.to(dtype), "A(1e-6, 1/128)", case=case)
    differ = int((got.cpu() != expected.to(dtype)).sum())
    require(differ <= 2 + 0.002 * expected.numel(), "too many values are rounded otherwise", case=case,
            got=f"{differ} of {expected.numel()}")  # fmt: skip


def decode(
    backend: Any,
    rings: Rings,
    steps: list[tuple[History | None, int]],
    ratio: int,
    device: Any,
    check: Any,
    *,
    max_q: int,
    dtype: torch.dtype = torch.float32,
    case: str = "",
) -> None:
    """One step with some rows of each history; None stands for a row that belongs to nobody."""
    width = rings.tensor.shape[3]
    rows, expected, slots, context = [], [], [], []
    nothing = torch.zeros(width, dtype=torch.float64)
    for h, count in steps:
        for _ in range(count):
            if h is None:
                rows.append(torch.full((2, width), 7.0))
                expected.append(nothing)
                slots.append(-1)
                context.append(3)
                continue
            row = h.rows[h.length]
            reference.written(rings.expected[h.slot], row[None], h.length)
            h.length += 1
            rows.append(row)
            ends = h.length % ratio == 0
            expected.append(h.entry(h.length // ratio - 1, ratio) if ends else nothing)
            slots.append(h.slot)
            context.append(h.length)
    both = torch.stack(rows) if rows else torch.zeros(0, 2, width)
    state_slot, lengths = on(device, slots, context)
    got = backend.ops["compress.decode"](
        both[:, 0].contiguous().to(device),
        both[:, 1].contiguous().to(device),
        rings.tensor,
        state_slot,
        lengths,
        ratio,
        max_q=max_q,
        dtype=dtype,
    )
    judge(check, got, torch.stack(expected) if expected else torch.zeros(0, width), dtype, case)
    rings.check("compress.decode", case)


@pytest.mark.op("compress.prefill", "compress.decode")
@pytest.mark.level("smoke")
def test_a_prompt_and_its_decode_steps_give_the_entries_of_the_whole_sequence(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    rings = Rings(backend, SMALL.width, SMALL.state_ring)
    a, b = history(generator, 24, SMALL.width, 3), history(generator, 24, SMALL.width, 1)
    prefill(backend, rings, [(a, 5), (b, 4)], 2, device, tolerance("compress.prefill"), case="two prompts")
    for step in range(4):
        decode(backend, rings, [(b, 1), (a, 1)], 2, device, tolerance("compress.decode"), max_q=1, case=f"step {step}")


@pytest.mark.op("compress.prefill")
@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=str)
@pytest.mark.parametrize("ratio", [2, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_chunks_of_any_length_give_the_entries_of_the_whole_prompt(
    backend: Any, device: Any, generator: Any, tolerance: Any, sizes: ModelSizes, ratio: int, dtype: Any
) -> None:
    ring = sizes.state_ring + ratio - 2
    rings = Rings(backend, sizes.width, ring)
    check = tolerance("compress.prefill")
    sequences = [history(generator, 80, sizes.width, slot) for slot in (4, 0, 2)]
    # Residues of every chunk boundary; chunks as long as the ring, longer, and of one row; three sequences, then fewer.
    plan = [(5, 1, 2), (1, 1, 1), (ring, ring + 1, 3), (ring - 1, 2 * ring + 1, 1), (3, 0, 19), (0, 7, 0), (2, 6, 4)]
    for number, counts in enumerate(plan):
        chunks = [(h, n) for h, n in zip(sequences, counts, strict=True) if n]
        prefill(backend, rings, chunks, ratio, device, check, dtype=dtype, case=f"step {number}, rows {counts}",
                row_seq=number % 2 == 1, permuted=number in (2, 4))  # fmt: skip


@pytest.mark.op("compress.decode")
@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_decode_writes_all_rows_before_it_reads_any(
    backend: Any, device: Any, generator: Any, tolerance: Any, sizes: ModelSizes, dtype: Any
) -> None:
    max_q = sizes.drafts + 1
    rings = Rings(backend, sizes.width, 2 + max_q - 1)  # as short as it may be
    check = tolerance("compress.decode")
    a, b, c = (history(generator, 100, sizes.width, slot) for slot in (2, 4, 0))
    plan: list[list[tuple[History | None, int]]] = [
        [(a, 1), (b, max_q), (c, 2)],
        [(a, max_q), (None, 2), (b, 1), (c, 3)],
        [(None, 1), (c, max_q), (a, 2), (b, 2)],
        [(b, max_q)],
        [],
        [(None, 3)],
        [(a, max_q - 1), (b, 3), (c, 1)],
    ]
    for number, steps in enumerate(plan):
        decode(backend, rings, steps, 2, device, check, max_q=max_q, dtype=dtype, case=f"step {number}")


@pytest.mark.op("compress.decode", "compress.prefill")
def test_rejected_rows_leave_no_trace_in_later_entries(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    max_q = SMALL.drafts + 1
    rings = Rings(backend, SMALL.width, 2 + max_q - 1)
    check = tolerance("compress.decode")
    a = history(generator, 60, SMALL.width, 1)
    prefill(backend, rings, [(a, 7)], 2, device, tolerance("compress.prefill"), case="prompt")
    for step, rejected in enumerate([max_q - 1, 0, 2, 1, max_q - 1, 3, 0]):
        decode(backend, rings, [(a, max_q)], 2, device, check, max_q=max_q, case=f"step {step}")
        a.length -= rejected
        a.rows[a.length :] = torch.randn(len(a.rows) - a.length, 2, SMALL.width, generator=generator)


@pytest.mark.op("compress.decode")
@pytest.mark.level("smoke")
def test_rows_of_no_sequence_and_of_no_length_write_nothing(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    rings = Rings(backend, SMALL.width, SMALL.state_ring)
    rows = torch.randn(3, SMALL.width, generator=generator).to(device)
    slots, lengths = on(device, [-1, 2, -1], [4, 0, 0])
    got = backend.ops["compress.decode"](rows, rows, rings.tensor, slots, lengths, 2, max_q=1)
    tolerance("compress.decode", "B")(got, torch.zeros(3, SMALL.width), case="three rows that are none")
    rings.check("compress.decode", "three rows that are none")


@pytest.mark.op("compress.decode")
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=str)
def test_decoded_entries_have_the_same_bits_alone_and_in_a_batch(
    backend: Any, device: Any, generator: Any, sizes: ModelSizes
) -> None:
    rings = Rings(backend, sizes.width, sizes.state_ring)
    fresh = torch.randn(UNITS, sizes.state_ring, 2, sizes.width, generator=generator)
    score, latent = (torch.randn(UNITS, sizes.width, generator=generator) for _ in range(2))
    lengths = torch.tensor([2, 6, 9, 4, 8])

    def run(rows: Tensor) -> Tensor:
        rings.tensor.copy_(fresh)
        slots, context = on(device, rows.tolist(), lengths[rows].tolist())
        inputs = (score[rows].to(device), latent[rows].to(device), rings.tensor)
        got: Tensor = backend.ops["compress.decode"](*inputs, slots, context, 2, max_q=1, dtype=torch.float32)
        return got

    require_row_invariant("compress.decode", run, UNITS, generator)


@pytest.mark.op("compress.prefill")
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize("sizes", [SMALL, RELEASED], ids=str)
def test_prompts_have_entries_of_the_same_bits_alone_and_in_a_batch(
    backend: Any, device: Any, generator: Any, sizes: ModelSizes
) -> None:
    rings = Rings(backend, sizes.width, sizes.state_ring)
    fresh = torch.randn(UNITS, sizes.state_ring, 2, sizes.width, generator=generator)
    rows = torch.randn(UNITS, 4, 2, sizes.width, generator=generator)

    def run(chosen: Tensor) -> Tensor:
        rings.tensor.copy_(fresh)
        n = len(chosen)
        both = rows[chosen].flatten(0, 1)
        slots, cu_q, cu_k, cu_c = on(
            device, chosen.tolist(), [4 * i for i in range(n + 1)], [9 * i for i in range(n + 1)],
            [2 * i for i in range(n + 1)],
        )  # fmt: skip
        inputs = (both[:, 0].contiguous().to(device), both[:, 1].contiguous().to(device), rings.tensor)
        got: Tensor = backend.ops["compress.prefill"](*inputs, slots, None, cu_q, cu_k, cu_c, 2, dtype=torch.float32)
        return got.view(n, 2, sizes.width)

    require_row_invariant("compress.prefill", run, UNITS, generator)


@pytest.mark.op("compress.state_copy")
@pytest.mark.level("smoke")
@pytest.mark.parametrize(("small", "large"), [(2, 7), (7, 2), (7, 7), (1, 6), (5, 3)])
def test_copy_moves_the_last_positions_that_both_rings_hold(
    backend: Any, device: Any, generator: Any, tolerance: Any, small: int, large: int
) -> None:
    for last_hit in (0, 1, 2, 3, 6, 7, 8, 13, 1000, 131_071):
        src = torch.randn(small, 2, 24, generator=generator)
        dst = torch.full((large, 2, 24), float("nan"))
        buffer = torch.full((3, large, 2, 24), float("nan"), device=device)
        expected = dst.clone()
        reference.copied(src, expected, last_hit)
        backend.ops["compress.state_copy"](src.to(device), buffer[1], last_hit)
        check = tolerance("compress.state_copy")
        check(buffer[1], expected, case=f"{small} to {large} rows, before position {last_hit}")
        check(buffer[::2], torch.full((2, large, 2, 24), float("nan")), case="the rings beside it")


@pytest.mark.op("compress.prefill", "compress.decode")
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(8))
def test_random_schedules_give_the_entries_of_whole_sequences(
    backend: Any, device: Any, rng: Any, tolerance: Any, seed: int
) -> None:
    generator = rng(4100 + seed)
    max_q = int(torch.randint(1, 7, (1,), generator=generator))
    ratio = (2, 2, 3, 4)[seed % 4]
    rings = Rings(backend, (64, 96)[seed % 2], ratio + max_q - 1 + seed % 2)
    width = rings.tensor.shape[3]
    sequences = [history(generator, 200, width, slot) for slot in torch.randperm(UNITS, generator=generator).tolist()]
    for step in range(20):
        picked = [h for h in sequences if torch.rand(1, generator=generator) < 0.7 and h.length < 150]
        if not picked:
            continue
        if torch.rand(1, generator=generator) < 0.4:
            chunks = [(h, int(torch.randint(1, 20, (1,), generator=generator))) for h in picked]
            prefill(backend, rings, chunks, ratio, device, tolerance("compress.prefill"), case=f"step {step}")
            continue
        counts = [int(torch.randint(1, max_q + 1, (1,), generator=generator)) for _ in picked]
        steps: list[tuple[History | None, int]] = [*zip(picked, counts, strict=True), (None, step % 2)]
        decode(backend, rings, steps, ratio, device, tolerance("compress.decode"), max_q=max_q, case=f"step {step}")
        for h, count in zip(picked, counts, strict=True):
            h.length -= int(torch.randint(0, count, (1,), generator=generator))
