"""Faults of the ops ``quant.*``, ``norm.*``, ``transform.*`` and ``gemm.*``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from mutant import Mutant
from torch import Tensor

from deepinfer_cpu import rounding
from deepinfer_cpu.ops import cache, norm, quant, transform
from deepinfer_cpu.tensors import PreparedWeight, QuantTensor, decode_scale

Op = Callable[..., Any]


def recoded(q: QuantTensor, data: Tensor, sf: Tensor) -> QuantTensor:
    return QuantTensor.of_codes(data, sf, fmt=q.fmt, group=q.group, sf_kind=q.sf_kind)


def quantised_by(x: Tensor, q: QuantTensor, sf: Tensor) -> QuantTensor:
    """``x`` in the format of ``q`` under other scales, by true division."""
    scale = decode_scale(sf, q.sf_kind).repeat_interleave(q.group, -1)
    encode = rounding.encode_e4m3 if q.fmt == "e4m3" else rounding.encode_e2m1
    return recoded(q, encode(x.float() / scale), sf)


def cast_swaps_nibbles(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        data = q.data if q.fmt == "e4m3" else (q.data << 4) | (q.data >> 4)
        return recoded(q, data, q.sf)

    return cast


def cast_takes_the_power_below(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        return quantised_by(x, q, q.sf - 1) if q.sf_kind == "ue8m0" else q

    return cast


def cast_has_no_floor(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        if q.sf_kind != "ue8m0" or q.fmt != "e4m3":
            return q
        amax = x.float().view(*x.shape[:-1], -1, q.group).abs().amax(-1)
        least = rounding.encode_e8m0(rounding.pow2_ceil((amax / 448).clamp(min=2.0**-126)))
        return quantised_by(x, q, torch.where(amax < 1e-4, least, q.sf))

    return cast


def cast_rounds_half_away(op: Op) -> Op:
    def cast(x: Tensor, *, group: int = 32, **options: Any) -> QuantTensor:
        grouped = x.float().reshape(*x.shape[:-1], -1, group)
        amax = grouped.abs().amax(-1, keepdim=True)
        return op((grouped * (1 + 2.0**-20)).clamp(-amax, amax).view(x.shape), group=group, **options)

    return cast


def cast_divides_by_the_rounded_scale(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        return quantised_by(x, q, q.sf) if q.sf_kind == "e4m3" else q

    return cast


def cast_loses_the_sign_of_zero(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        return recoded(q, torch.where(q.data == 0x80, 0, q.data), q.sf) if q.fmt == "e4m3" else q

    return cast


def cast_scales_by_a_reciprocal(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        if q.sf_kind != "f32":
            return q
        inverse = ((q.sf * 448).reciprocal() * 448).repeat_interleave(q.group, -1)
        return recoded(q, rounding.encode_e4m3(x.float() * inverse), q.sf)

    return cast


def cast_leaves_scales_of_out(op: Op) -> Op:
    def cast(x: Tensor, *, out: QuantTensor | None = None, **options: Any) -> QuantTensor:
        q = op(x, **options)
        if out is None:
            return q
        out.data.copy_(q.data)
        return recoded(q, out.data, out.sf)

    return cast


def cast_is_lazy_about_its_input(op: Op) -> Op:
    def cast(x: Tensor, **options: Any) -> QuantTensor:
        q = op(x, **options)
        q._parts, q._encoded = (lambda: quant.scale_groups(x, q.fmt, q.group, q.sf_kind)), False
        return q

    return cast


def dequantize_is_a_power_off(op: Op) -> Op:
    return lambda q, *, dtype=torch.bfloat16: op(q, dtype=dtype) * 2


def prepare_transposes_the_scale_grid(op: Op) -> Op:
    def prepare(name: str, w: Any, sf: Any = None, **options: Any) -> PreparedWeight:
        square = isinstance(sf, Tensor) and sf.shape[0] == sf.shape[1]
        return op(name, w, sf.t().contiguous() if square else sf, **options)

    return prepare


def rms_adds_eps_behind_the_root(op: Op) -> Op:
    def rms(x: Tensor, w: Tensor, *, eps: float, **options: Any) -> Any:
        xf = x.float()
        y = xf / (xf.square().mean(-1, keepdim=True).sqrt() + eps) * w.float()
        return y.to(x.dtype), None

    return rms


def rms_adds_the_residual_behind_the_norm(op: Op) -> Op:
    def rms(x: Tensor, w: Tensor, *, residual: Tensor | None = None, **options: Any) -> Any:
        y, q = op(x, w, **options)
        if residual is not None:
            residual.add_(x)
            y = y + residual
        return y, q

    return rms


def rms_forgets_out_scale(op: Op) -> Op:
    return lambda x, w, *, out_scale=1.0, **options: op(x, w, **options)


def rms_casts_the_unrounded_result(op: Op) -> Op:
    def rms(x: Tensor, w: Tensor, *, eps: float, cast: Any = None, **options: Any) -> Any:
        y, q = op(x, w, eps=eps, cast=cast, **options)
        if cast is not None:
            fine = norm.normalise(x.float(), w.float(), eps)
            q = quant.cast_per_token(fine, fmt=cast[0], group=cast[1], sf=cast[2])
        return y, q

    return rms


def rms_writes_behind_out(op: Op) -> Op:
    def rms(x: Tensor, w: Tensor, *, out: Tensor | None = None, **options: Any) -> Any:
        result = op(x, w, out=out, **options)
        if out is not None:
            out.as_strided((out.numel() + 1,), (1,))[-1] = 0
        return result

    return rms


def rms_differs_from_call_to_call(op: Op) -> Op:
    calls = itertools.count()

    def rms(x: Tensor, w: Tensor, **options: Any) -> Any:
        y, q = op(x, w, **options)
        if next(calls) % 2:
            y.view(-1)[-1:] *= 1.01
        return y, q

    return rms


def rotary_pairs_halves(op: Op) -> Op:
    def rotary(x: Tensor, rope: tuple[Any, ...], *, out: Tensor | None = None) -> Tensor:
        rows, _ = transform._rows(rope)
        size = rows.rotary_dim
        halves = torch.arange(size).view(2, -1).t().reshape(-1)
        y, at = x.clone(), x.shape[-1] - size
        y[..., at:] = x[..., at:][..., halves]
        turned = op(y, rope)
        y[..., at:] = turned[..., at:][..., halves.argsort()]
        return y if out is None else out.copy_(y)

    return rotary


def rotary_ignores_conjugate(op: Op) -> Op:
    return lambda x, rope, **options: op(x, (*rope[:-1], False), **options)


def rotary_turns_the_first_dimensions(op: Op) -> Op:
    def rotary(x: Tensor, rope: tuple[Any, ...], *, out: Tensor | None = None) -> Tensor:
        y = op(x.roll(-transform._rows(rope)[0].rotary_dim, -1), rope)
        y = y.roll(transform._rows(rope)[0].rotary_dim, -1)
        return y if out is None else out.copy_(y)

    return rotary


def hadamard_divides_by_the_width(op: Op) -> Op:
    return lambda x, scale: op(x, scale * x.shape[-1] ** -0.5)


def table_has_exact_angles(op: Op) -> Op:
    def rope_table(max_pos: int, rotary_dim: int, *, theta: float, scaling: Any = None) -> Tensor:
        f = torch.tensor(transform.rope_frequencies(rotary_dim, theta, scaling), dtype=torch.float64)
        angles = torch.arange(max_pos, dtype=torch.float64).unsqueeze(1) * f
        return torch.cat([angles.cos(), angles.sin()], dim=1).float()

    return rope_table


def rows_are_those_of_the_next_position(op: Op) -> Op:
    return lambda cos_sin, positions: op(cos_sin, positions + 1)


def fused_transforms_before_it_rotates(op: Op) -> Op:
    def fused(x: Tensor, *, rope: Any = None, hadamard: float | None = None, **options: Any) -> Any:
        if rope is None or hadamard is None or options.get("norm") is not None:
            return op(x, rope=rope, hadamard=hadamard, **options)
        return op(transform.hadamard(x, hadamard), rope=rope, **options)

    return fused


def fused_copies_norm_behind_the_rotation(op: Op) -> Op:
    def fused(x: Tensor, *, copy_stage: str | None = None, **options: Any) -> Any:
        return op(x, copy_stage="transform" if copy_stage == "norm" else copy_stage, **options)

    return fused


def fused_casts_without_rounding(op: Op) -> Op:
    def fused(x: Tensor, *, cast: Any = None, **options: Any) -> Any:
        result = op(x, cast=cast, **options)
        if cast is None:
            return result
        fine = op(x.float(), cast=cast, **options)
        return (fine[0], result[1]) if isinstance(result, tuple) else fine

    return fused


def fused_stores_skipped_rows_at_slot_0(op: Op) -> Op:
    def fused(x: Tensor, *, store: Any = None, **options: Any) -> Any:
        if store is not None:
            cache.store(torch.ones(1, x.shape[-1], dtype=x.dtype), store[0], torch.zeros(1, dtype=torch.int32))
            store = (store[0], torch.where(store[1] == 0, -1, store[1]))
        return op(x, store=store, **options)

    return fused


def _product_in_bf16(a: Tensor, matrix: Tensor, step: int) -> Tensor:
    y = torch.zeros(*a.shape[:-1], matrix.shape[-1], dtype=torch.bfloat16)
    for k in range(0, matrix.shape[-2], step):
        y = (y.float() + a[..., k : k + step] @ matrix[..., k : k + step, :]).bfloat16()
    return y


def _values(a: Any) -> Tensor:
    return a.values if isinstance(a, QuantTensor) else a.float()


def dense_accumulates_in_bf16(op: Op) -> Op:
    def dense(a: Any, w: PreparedWeight, *, out_dtype: Any = None, **options: Any) -> Tensor:
        return _product_in_bf16(_values(a), w.matrix, 1).to(out_dtype or torch.bfloat16)

    return dense


def dense_accumulates_blocks_in_bf16(op: Op) -> Op:
    def dense(a: Any, w: PreparedWeight, *, out_dtype: Any = None, **options: Any) -> Tensor:
        return _product_in_bf16(_values(a), w.matrix, 32).to(out_dtype or torch.bfloat16)

    return dense


def dense_rounds_before_it_adds(op: Op) -> Op:
    def dense(a: Any, w: PreparedWeight, *, acc: Tensor | None = None, **options: Any) -> Tensor:
        y = op(a, w, **options)
        return y if acc is None else (y.bfloat16() + acc).to(y.dtype)

    return dense


def dense_sums_long_batches_in_another_order(op: Op) -> Op:
    def dense(a: Any, w: PreparedWeight, **options: Any) -> Tensor:
        values = _values(a)
        if len(values) <= 32 or values.dim() != 2:
            return op(a, w, **options)
        backwards = PreparedWeight(name=w.name, use=w.use, matrix=w.matrix.flip(0).contiguous())
        return op(values.flip(1).contiguous(), backwards, **{"out_dtype": torch.bfloat16, **options})

    return dense


def grouped_segments_begin_a_row_late(op: Op) -> Op:
    def grouped(a: Any, w: PreparedWeight, seg_ends: Any, **options: Any) -> Tensor:
        ends = seg_ends.tolist() if isinstance(seg_ends, Tensor) else list(seg_ends)
        return op(a, w, [min(end + 1, ends[-1]) if end else 0 for end in ends], **options)

    return grouped


def heads_accumulates_in_bf16(op: Op) -> Op:
    def einsum_heads(a: Any, w: PreparedWeight, **options: Any) -> Any:
        parts = [_product_in_bf16(_values(a)[:, g], w.matrix[g], 32) for g in range(w.matrix.shape[0])]
        return torch.stack(parts, dim=1)

    return einsum_heads


def _of(op: str, file: str, *faults: tuple[Callable[[Op], Op], str]) -> list[Mutant]:
    return [
        Mutant(name=make.__name__, op=op, make=make, caught_by=f"backend/{file}", test=test) for make, test in faults
    ]


MUTANTS = [
    *_of(
        "quant.cast_per_token",
        "test_quant.py",
        (cast_swaps_nibbles, "golden_vectors"),
        (cast_takes_the_power_below, "golden_vectors"),
        (cast_has_no_floor, "extreme and q8"),
        (cast_rounds_half_away, "every_tie"),
        (cast_divides_by_the_rounded_scale, "reciprocal"),
        (cast_loses_the_sign_of_zero, "extreme and q8"),
        (cast_scales_by_a_reciprocal, "uneven and f32"),
        (cast_leaves_scales_of_out, "into_out"),
        (cast_is_lazy_about_its_input, "change_with_its_input"),
    ),
    *_of("quant.dequantize", "test_quant.py", (dequantize_is_a_power_off, "dequantize")),
    *_of(
        "quant.prepare_weight",
        "test_quant_weights.py",
        (prepare_transposes_the_scale_grid, "checkpoint"),
    ),
    *_of(
        "norm.rms",
        "test_norm.py",
        (rms_adds_eps_behind_the_root, "mean_of_squares"),
        (rms_adds_the_residual_behind_the_norm, "residual"),
        (rms_forgets_out_scale, "out_scale"),
        (rms_casts_the_unrounded_result, "rounded_result"),
        (rms_writes_behind_out, "into_out"),
        (rms_differs_from_call_to_call, "twice"),
    ),
    *_of(
        "transform.rotary",
        "test_transform.py",
        (rotary_pairs_halves, "adjacent"),
        (rotary_ignores_conjugate, "adjacent"),
        (rotary_turns_the_first_dimensions, "adjacent"),
    ),
    *_of("transform.hadamard", "test_transform.py", (hadamard_divides_by_the_width, "hadamard")),
    *_of(
        "transform.rope_table",
        "test_transform.py",
        (table_has_exact_angles, "table_equals"),
    ),
    *_of("transform.rope_rows", "test_transform.py", (rows_are_those_of_the_next_position, "rope_rows")),
    *_of(
        "transform.fused",
        "test_transform_fused.py",
        (fused_transforms_before_it_rotates, "without_norm"),
        (fused_copies_norm_behind_the_rotation, "within_a_rounding"),
        (fused_casts_without_rounding, "within_a_rounding"),
        (fused_stores_skipped_rows_at_slot_0, "store_op_writes"),
    ),
    *_of(
        "gemm.dense",
        "test_gemm.py",
        (dense_accumulates_in_bf16, "long_sums"),
        (dense_accumulates_blocks_in_bf16, "cancel"),
        (dense_rounds_before_it_adds, "accumulator"),
        (dense_sums_long_batches_in_another_order, "dense_of_a_row"),
    ),
    *_of("gemm.grouped", "test_gemm.py", (grouped_segments_begin_a_row_late, "own_weight")),
    *_of("gemm.einsum_heads", "test_gemm.py", (heads_accumulates_in_bf16, "cancel")),
]
