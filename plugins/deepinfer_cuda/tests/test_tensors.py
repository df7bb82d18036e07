"""Quantised tensors and prepared weights: every form derives from any other, exactly."""

from __future__ import annotations

import pytest
import torch

from deepinfer_core.conformance import samples
from deepinfer_core.conformance.reference import quant as reference
from deepinfer_core.interfaces import cpu_backend
from deepinfer_cuda.tensors import PreparedWeight, QuantTensor, decode, encode

FORMATS = [("e4m3", 32, "ue8m0"), ("e2m1", 32, "ue8m0"), ("e2m1", 16, "e4m3")]


def quantised(fmt: str, group: int, sf_kind: str) -> tuple[QuantTensor, torch.Tensor]:
    x = samples.uneven(torch.Generator().manual_seed(11), 9, 128, octaves=6)
    q = cpu_backend().ops["quant.cast_per_token"](x, fmt=fmt, group=group, sf=sf_kind)
    return QuantTensor.of_codes(q.data, q.sf, fmt=fmt, group=group, sf_kind=sf_kind), q.values


@pytest.mark.parametrize("form", FORMATS, ids=str)
def test_codes_give_the_values_of_the_reference(form: tuple[str, int, str]) -> None:
    q, values = quantised(*form)
    assert q.forms == ("data",)
    assert torch.equal(q.values, values)
    assert torch.equal(q.exact.float(), values)
    assert q.shape == values.shape


@pytest.mark.parametrize("form", FORMATS, ids=str)
@pytest.mark.parametrize("given", ["exact", "values"])
def test_codes_derive_from_the_other_forms_byte_for_byte(form: tuple[str, int, str], given: str) -> None:
    q, _ = quantised(*form)
    other = QuantTensor(fmt=form[0], group=form[1], sf_kind=form[2], sf=q.sf, **{given: getattr(q, given)})
    assert other.forms == (given,)
    assert torch.equal(other.data, q.data)
    assert torch.equal(other.values, q.values)


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_every_finite_code_survives_decoding_and_encoding(fmt: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8)
    if fmt == "e4m3":
        codes = codes[codes & 0x7F != 0x7F]
    assert torch.equal(encode(decode(codes, fmt), fmt), codes)


def test_a_weight_of_blocks_gives_the_reference_matrix_and_exact_bf16() -> None:
    codes, scale = samples.fp8_weight(torch.Generator().manual_seed(12), 72, 96)
    values = reference.weight_values(codes, scale).float()
    w = PreparedWeight("w", "dense", "e4m3", codes.view(torch.uint8), scale.view(torch.uint8), reach=(-20, 0))
    assert w.shape == (96, 72)
    assert torch.equal(w.matrix, values.t())
    assert w.matrix.is_contiguous()
    assert w.is_exact
    assert torch.equal(w.exact.float(), values)
    assert w.exact is w.exact


def test_scales_at_the_ends_of_the_exponents_are_not_exact_in_bf16() -> None:
    w = PreparedWeight("w", "dense", "e4m3", torch.zeros(32, 32, dtype=torch.uint8), torch.zeros(1, 1), reach=(-127, 0))
    assert not w.is_exact
