"""``attn.*``: attention over listed keys, of a buffer and of caches (``spec/kernels.md`` 2.3, ``model.md`` 2.5)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from deepinfer_core.conformance import tolerances
from deepinfer_core.conformance.backend.attention_cases import (
    buffer,
    cached,
    judge,
    prefill_reference,
)
from deepinfer_core.conformance.backend.offered import partner, require_format
from deepinfer_core.conformance.bitwise import require_row_invariant
from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model_sizes import BOTH, RELEASED, SMALL, ModelSizes, offered_heads
from deepinfer_core.conformance.reference import attention as reference
from deepinfer_core.conformance.reference import transform as rotation

PREFILL, DECODE = "attn.sparse_prefill", "attn.sparse_decode"


def dtype_of(backend: Any, name: str) -> torch.dtype:
    if name not in backend.capabilities.dtypes:
        pytest.skip(f"not offered: dtype {name}")
    return {"bf16": torch.bfloat16, "f32": torch.float32}[name]


@pytest.mark.op(PREFILL)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
@pytest.mark.parametrize(
    ("sizes", "rows", "keys", "columns"),
    [(SMALL, 12, 90, 48), (SMALL, 1, 1, 1), (SMALL, 7, 33, 7), (SMALL, 0, 5, 4), (RELEASED, 6, 900, 640),
     (RELEASED, 7, 65, 65)],
    ids=lambda v: str(v),
)  # fmt: skip
def test_prefill_attends_to_listed_keys_only(
    backend: Any,
    device: Any,
    generator: Any,
    tolerance: Any,
    repeat: Any,
    guarded: Any,
    dtype: str,
    sizes: ModelSizes,
    rows: int,
    keys: int,
    columns: int,
) -> None:
    case = buffer(backend, sizes, generator, rows=rows, keys=keys, columns=columns, dtype=dtype_of(backend, dtype))
    q, kv, indices = case.tensors(device)
    q, kv = guarded.of(q, name="q", frozen=True), guarded.of(kv, name="kv", frozen=True)
    for with_sink in (False, True):
        for with_lengths in (False, True):
            sink, lengths = case.sink if with_sink else None, case.lengths if with_lengths else None
            options = {
                "scale": case.scale,
                "sink": None if sink is None else sink.to(device),
                "lengths": None if lengths is None else case.length_tensor(device),
            }
            out = guarded(tuple(q.shape), q.dtype, name="out")
            got = repeat(PREFILL, q, kv, indices, out=out, **options)
            require(got[0] is out or not out.numel(), "out is not what comes back", op=PREFILL)
            expected = prefill_reference(case.q, case.kv, case.indices, lengths, case.scale, sink)
            judge(tolerance, PREFILL, got, expected, q.dtype,
                  case=f"sink {with_sink}, lengths {with_lengths}")  # fmt: skip


@pytest.mark.op(PREFILL)
@pytest.mark.level("smoke")
def test_a_row_without_keys_gives_zero_and_no_key_is_read(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    heads, width = offered_heads(backend, SMALL.heads), SMALL.width
    q = torch.randn(3, heads, width, generator=generator).bfloat16().to(device)
    kv = torch.full((5, width), float("nan"), device=device).bfloat16()
    kv[3] = 1.0
    indices = torch.tensor([[-1, -1, 5], [3, -1, 2**30], [-1, -1, -1]], dtype=torch.int32, device=device)
    got = backend.ops[PREFILL](q, kv, indices, scale=SMALL.scale, sink=torch.zeros(heads, device=device))
    expected = prefill_reference(q.cpu(), kv.cpu(), indices.tolist(), None, SMALL.scale, torch.zeros(heads))
    judge(tolerance, PREFILL, got, expected, torch.bfloat16, case="rows without keys")
    none = backend.ops[PREFILL](q, kv[:0], indices, scale=SMALL.scale)
    nothing = (torch.zeros(q.shape), torch.full(q.shape[:2], float("inf")))
    judge(tolerance, PREFILL, none, nothing, torch.bfloat16, case="an empty buffer")


@pytest.mark.op(PREFILL)
@pytest.mark.level("smoke")
def test_a_row_of_nan_stays_a_row_of_nan(backend: Any, device: Any, generator: Any, tolerance: Any) -> None:
    case = buffer(backend, SMALL, generator, rows=4, keys=20, columns=8)
    q, kv, indices = case.tensors(device)
    sick = q.clone()
    sick[1] = float("nan")
    got = backend.ops[PREFILL](sick, kv, indices, scale=case.scale)
    expected = prefill_reference(sick.cpu(), case.kv, case.indices, None, case.scale, None)
    judge(tolerance, PREFILL, got, expected, torch.bfloat16, case="row 1 is NaN")


@pytest.mark.op(PREFILL)
@pytest.mark.level("smoke")
@pytest.mark.parametrize("sink", [-40.0, 0.0, 40.0])
def test_scores_and_sinks_far_apart_overflow_nowhere(
    backend: Any, device: Any, generator: Any, tolerance: Any, sink: float
) -> None:
    case = buffer(backend, SMALL, generator, rows=4, keys=30, columns=9)
    q, kv, indices = case.tensors(device)
    big = (q * 40).to(q.dtype)
    values = torch.full((q.shape[1],), sink)
    got = backend.ops[PREFILL](big, kv, indices, scale=case.scale, sink=values.to(device))
    expected = prefill_reference(big.cpu(), case.kv, case.indices, None, case.scale, values)
    judge(tolerance, PREFILL, got, expected, q.dtype, case=f"scores near 100, sink {sink}")


EXTRAS = [None, *(pytest.param(name, marks=pytest.mark.needs(f"kv:{name}")) for name in ("v41_fp4", "v41", "bf16"))]


@pytest.mark.op(DECODE, "attn.plan")
@pytest.mark.parametrize("extra", EXTRAS)
@pytest.mark.parametrize(
    ("sizes", "rows", "window", "columns"),
    [(SMALL, 12, 32, 16), (SMALL, 1, 1, 1), (RELEASED, 6, 128, 512), (RELEASED, 2, 128, 65)],
    ids=lambda v: str(v),
)
def test_decode_attends_to_listed_entries_only(
    backend: Any,
    device: Any,
    generator: Any,
    tolerance: Any,
    repeat: Any,
    guarded: Any,
    extra: str | None,
    sizes: ModelSizes,
    rows: int,
    window: int,
    columns: int,
) -> None:
    if extra is not None:
        require_format(backend, "kv", extra)
    case = cached(backend, sizes, generator, rows=rows, window=window, extra=extra, columns=columns)
    idx = torch.tensor(case.idx, dtype=torch.int32, device=device)
    q = guarded.of(case.q, name="q", frozen=True)
    for lengths, sink in ((False, True), (True, True), (True, False)):
        options = case.options(device, lengths=lengths, sink=sink)
        out = guarded(tuple(q.shape), q.dtype, name="out")
        plan = backend.ops["attn.plan"]()
        got = repeat(DECODE, q, case.window, idx, plan=plan, out=out, **options)
        require(got[0] is out, "out is not what comes back", op=DECODE)
        judge(tolerance, DECODE, got, case.expected(lengths=lengths, sink=sink), q.dtype,
              case=f"lengths {lengths}, sink {sink}")  # fmt: skip


@pytest.mark.op(DECODE)
@pytest.mark.level("smoke")
def test_decode_of_a_few_rows_reads_window_and_extra(backend: Any, device: Any, generator: Any, tolerance: Any) -> None:
    extra = partner(backend, "kv")
    case = cached(backend, SMALL, generator, rows=6, window=9, extra=extra, columns=5)
    idx = torch.tensor(case.idx, dtype=torch.int32, device=device)
    for lengths in (False, True):
        got = backend.ops[DECODE](
            case.q.to(device), case.window, idx, **case.options(device, lengths=lengths, sink=True)
        )
        judge(tolerance, DECODE, got, case.expected(lengths=lengths, sink=True), case.q.dtype,
              case=f"lengths {lengths}")  # fmt: skip


@pytest.mark.op(DECODE)
@pytest.mark.level("smoke")
def test_decode_of_no_rows_gives_none(backend: Any, device: Any, generator: Any) -> None:
    case = cached(backend, SMALL, generator, rows=0, window=4, extra=partner(backend, "kv"), columns=3)
    idx = torch.zeros(0, 4, dtype=torch.int32, device=device)
    out, lse = backend.ops[DECODE](case.q.to(device), case.window, idx, **case.options(device, lengths=True, sink=True))
    require_equal(tuple(out.shape), tuple(case.q.shape), "shape of no output", op=DECODE)
    require_equal(tuple(lse.shape), tuple(case.q.shape[:2]), "shape of no log-sum-exp", op=DECODE)


@pytest.mark.op(DECODE)
@pytest.mark.needs("kv:f32")
def test_decode_in_fp32_attends_to_listed_entries_only(
    backend: Any, device: Any, generator: Any, tolerance: Any
) -> None:
    require_format(backend, "kv", "f32")
    case = cached(backend, SMALL, generator, rows=12, window=32, extra="f32", columns=16, fmt="f32",
                  dtype=dtype_of(backend, "f32"))  # fmt: skip
    idx = torch.tensor(case.idx, dtype=torch.int32, device=device)
    got = backend.ops[DECODE](case.q.to(device), case.window, idx, **case.options(device, lengths=True, sink=True))
    judge(tolerance, DECODE, got, case.expected(lengths=True, sink=True), torch.float32)


@pytest.mark.op(PREFILL)
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize(("sizes", "keys", "columns"), [(SMALL, 90, 48), (RELEASED, 700, 300)], ids=lambda v: str(v))
def test_prefill_rows_have_the_same_bits_alone_and_in_a_batch(
    backend: Any, device: Any, generator: Any, sizes: ModelSizes, keys: int, columns: int
) -> None:
    case = buffer(backend, sizes, generator, rows=6, keys=keys, columns=columns)
    q, kv, indices = case.tensors(device)
    sink, lengths = case.sink.to(device), case.length_tensor(device)

    def run(rows: Tensor) -> Tensor:
        where = rows.to(device)
        out, lse = backend.ops[PREFILL](
            q[where], kv, indices[where], scale=case.scale, sink=sink, lengths=lengths[where]
        )
        return torch.cat([out.float(), lse.unsqueeze(2)], dim=2)

    require_row_invariant(PREFILL, run, 6, generator)


@pytest.mark.op(DECODE, "attn.plan")
@pytest.mark.needs("feature:batch_invariant")
@pytest.mark.parametrize(("sizes", "window", "columns"), [(SMALL, 32, 16), (RELEASED, 128, 300)], ids=lambda v: str(v))
def test_decode_rows_have_the_same_bits_alone_and_in_a_batch(
    backend: Any, device: Any, generator: Any, sizes: ModelSizes, window: int, columns: int
) -> None:
    case = cached(backend, sizes, generator, rows=6, window=window, extra=partner(backend, "kv"), columns=columns)
    idx = torch.tensor(case.idx, dtype=torch.int32, device=device)
    options = case.options(device, lengths=True, sink=True)
    per_row = [name for name in ("lengths", "extra_idx", "extra_lengths") if name in options]
    q = case.q.to(device)

    def run(rows: Tensor) -> Tensor:
        where = rows.to(device)
        mine = options | {name: options[name][where] for name in per_row}
        plan = backend.ops["attn.plan"](batch_invariant=True)
        out, lse = backend.ops[DECODE](q[where], case.window, idx[where], plan=plan, **mine)
        return torch.cat([out.float(), lse.unsqueeze(2)], dim=2)

    require_row_invariant(DECODE, run, 6, generator)


def rope_of(sizes: ModelSizes, rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A table of angles fp32 ``[64, R]`` and a position for each row."""
    table = rotation.rope_table(range(64), sizes.rotary, 10_000.0).float()
    return table, torch.randint(0, 64, (rows,), generator=generator)


@pytest.mark.op("attn.fused_prefill")
@pytest.mark.needs("op:attn.fused_prefill")
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_fused_prefill_is_the_composition(
    backend: Any, device: Any, generator: Any, tolerance: Any, norm: bool
) -> None:
    case = buffer(backend, SMALL, generator, rows=8, keys=60, columns=20)
    table, positions = rope_of(SMALL, 8, generator)
    weight = torch.rand(SMALL.width, generator=generator) + 0.5
    q, kv, indices = case.tensors(device)
    got = backend.ops["attn.fused_prefill"](
        q, kv, indices, scale=case.scale, sink=case.sink.to(device), lengths=case.length_tensor(device),
        norm=(weight.to(device), 1e-20) if norm else None,
        rope=(table.to(device), positions.to(device), False), groups=SMALL.groups,
    )  # fmt: skip
    keys = [case.kv.double()[reference.listed(r, n, 60)] for r, n in zip(case.indices, case.lengths, strict=True)]
    judge_fused(backend, tolerance, "attn.fused_prefill", got, case.q, keys, case.scale, case.sink,
                (weight, 1e-20) if norm else None, table, positions)  # fmt: skip


@pytest.mark.op("attn.fused_decode")
@pytest.mark.needs("op:attn.fused_decode")
@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
def test_fused_decode_is_the_composition(backend: Any, device: Any, generator: Any, tolerance: Any, norm: bool) -> None:
    case = cached(backend, SMALL, generator, rows=8, window=20, extra=partner(backend, "kv"), columns=9)
    table, positions = rope_of(SMALL, 8, generator)
    weight = torch.rand(SMALL.width, generator=generator) + 0.5
    idx = torch.tensor(case.idx, dtype=torch.int32, device=device)
    got = backend.ops["attn.fused_decode"](
        case.q.to(device), case.window, idx, plan=backend.ops["attn.plan"](),
        norm=(weight.to(device), 1e-20) if norm else None,
        rope=(table.to(device), positions.to(device), False), groups=SMALL.groups,
        **case.options(device, lengths=True, sink=True),
    )  # fmt: skip
    judge_fused(backend, tolerance, "attn.fused_decode", got, case.q, case.keys_by_length, case.scale, case.sink,
                (weight, 1e-20) if norm else None, table, positions)  # fmt: skip


def judge_fused(
    backend: Any, tolerance: Any, op: str, got: Any, q: Tensor, keys: list[Tensor], scale: float, sink: Tensor,
    norm: tuple[Tensor, float] | None, table: Tensor, positions: Tensor,
) -> None:  # fmt: skip
    """The values of the quantised result in the class of the op, and its direction (``spec/kernels.md`` 2.3)."""
    __tracebackhide__ = True
    values = backend.ops["quant.dequantize"](got, dtype=torch.float32)
    expected = reference.fused_rows(
        q, keys, scale, sink, norm=norm, cos_sin=table, positions=positions, groups=SMALL.groups
    )
    tolerance(op)(values, expected, case="values")
    tolerances.check(values, expected, "C(1e-3)", op=op, case="direction")


@pytest.mark.op(PREFILL, DECODE)
@pytest.mark.level("full")
@pytest.mark.parametrize("seed", range(10))
def test_random_lists_of_keys_are_attended_to(backend: Any, device: Any, rng: Any, tolerance: Any, seed: int) -> None:
    generator = rng(8100 + seed)
    sizes = BOTH[seed % 5 == 4]
    rows, columns = (int(torch.randint(1, 40, (1,), generator=generator)) for _ in range(2))
    case = buffer(backend, sizes, generator, rows=rows, keys=columns + seed, columns=columns)
    got = backend.ops[PREFILL](
        *case.tensors(device), scale=case.scale, sink=case.sink.to(device), lengths=case.length_tensor(device)
    )
    expected = prefill_reference(case.q, case.kv, case.indices, case.lengths, case.scale, case.sink)
    judge(tolerance, PREFILL, got, expected, case.q.dtype, case=f"{rows} rows of {columns}")
    window = int(torch.randint(1, sizes.window + 1, (1,), generator=generator))
    decode = cached(backend, sizes, generator, rows=rows, window=window, extra=partner(backend, "kv"), columns=columns)
    idx = torch.tensor(decode.idx, dtype=torch.int32, device=device)
    got = backend.ops[DECODE](
        decode.q.to(device), decode.window, idx, **decode.options(device, lengths=True, sink=True)
    )
    judge(tolerance, DECODE, got, decode.expected(lengths=True, sink=True), decode.q.dtype,
          case=f"{rows} rows of {window} and {columns}")  # fmt: skip
