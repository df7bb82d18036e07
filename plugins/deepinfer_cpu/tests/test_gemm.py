"""Products against double precision of the dequantised operands."""

import pytest
import torch

from deepinfer_core.errors import ShapeContractError
from deepinfer_cpu.ops import gemm, quant


def weight(out: int, inp: int, use: str = "dense"):
    w = torch.randn(out, inp).to(torch.float8_e4m3fn)
    sf = torch.randint(120, 130, (-(-out // 32), -(-inp // 32)), dtype=torch.uint8)
    return quant.prepare_weight("w", w, sf.view(torch.float8_e8m0fnu), use=use)


@pytest.mark.parametrize("rows", [0, 1, 2, 7, 64])
def test_dense_of_quantised_rows_equals_double_precision(rows):
    q, w = quant.cast_per_token(torch.randn(rows, 96).bfloat16()), weight(70, 96)
    y = gemm.dense(q, w)
    expected = q.values.double() @ w.matrix.double()
    assert y.dtype == torch.bfloat16
    assert y.shape == (rows, 70)
    torch.testing.assert_close(
        y.double(), expected, rtol=2**-8, atol=expected.abs().amax().item() * 1e-6 if rows else 0
    )


def test_dense_keeps_the_input_dtype_or_takes_the_wanted_one():
    w = quant.prepare_weight("w", torch.randn(8, 32).bfloat16())
    x = torch.randn(3, 32)
    assert gemm.dense(x, w).dtype == torch.float32
    assert gemm.dense(x.bfloat16(), w).dtype == torch.bfloat16
    full = gemm.dense(x.bfloat16(), w, out_dtype=torch.float32)
    torch.testing.assert_close(full.double(), x.bfloat16().double() @ w.matrix.double(), rtol=1e-5, atol=1e-5)


def test_dense_adds_acc_before_rounding():
    w = quant.prepare_weight("w", torch.randn(8, 32))
    x, acc = torch.randn(3, 32).bfloat16(), torch.randn(3, 8)
    y = gemm.dense(x, w, acc=acc)
    assert torch.equal(y, (gemm.dense(x, w, out_dtype=torch.float32) + acc).bfloat16())


def test_dense_of_more_dimensions_works_on_the_last():
    w = quant.prepare_weight("w", torch.randn(8, 32))
    x = torch.randn(2, 5, 32)
    assert torch.equal(gemm.dense(x, w), gemm.dense(x.view(10, 32), w).view(2, 5, 8))
    out = torch.empty(2, 5, 8)
    assert gemm.dense(x, w, out=out) is out


def test_dense_of_a_wrong_width_names_weight_and_shapes():
    with pytest.raises(ShapeContractError, match=r"gemm\.dense: argument 'a' must be \[\.\.\., 32\] for weight wq_a"):
        gemm.dense(torch.zeros(1, 64), quant.prepare_weight("wq_a", torch.zeros(8, 32)))


@pytest.mark.parametrize("ends", [[3, 3, 8], [0, 8, 8], [8, 8, 8], [2, 3, 5]])
def test_grouped_uses_each_groups_weight_and_leaves_the_tail_zero(ends):
    stack = quant.prepare_weight("e", [torch.randn(6, 32) for _ in range(3)], use="experts")
    x = torch.randn(8, 32)
    y = gemm.grouped(x, stack, torch.tensor(ends))
    begin = 0
    for g, end in enumerate(ends):
        expected = x[begin:end].double() @ stack.matrix[g].double()
        torch.testing.assert_close(y[begin:end].double(), expected, rtol=1e-5, atol=1e-5)
        begin = end
    assert not y[begin:].any()


def test_grouped_with_a_segment_too_few_is_refused():
    stack = quant.prepare_weight("e", [torch.randn(6, 32) for _ in range(3)], use="experts")
    with pytest.raises(ShapeContractError, match="seg_ends"):
        gemm.grouped(torch.randn(4, 32), stack, [2, 4])


def test_grouped_with_a_dense_weight_is_refused():
    with pytest.raises(ShapeContractError, match=r"gemm\.grouped"):
        gemm.grouped(torch.randn(4, 32), quant.prepare_weight("w", torch.randn(6, 32)), [4])


@pytest.mark.parametrize("rows", [1, 5])
def test_einsum_heads_equals_the_einsum(rows):
    w = weight(2 * 16, 64, use="heads:2")
    a = torch.randn(rows, 2, 64).bfloat16()
    z = gemm.einsum_heads(a, w)
    assert z.dtype == torch.bfloat16
    expected = torch.einsum("tgk,gkn->tgn", a.double(), w.matrix.double())
    torch.testing.assert_close(z.double(), expected, rtol=2**-8, atol=expected.abs().amax().item() * 1e-6)


def test_einsum_heads_with_fp8_output_quantises_the_rounded_result():
    w = quant.prepare_weight("wo", torch.randn(64, 16), use="heads:2")
    a = torch.randn(3, 2, 16).bfloat16()
    assert torch.equal(gemm.einsum_heads(a, w, out_fp8=True).data, quant.cast_per_token(gemm.einsum_heads(a, w)).data)


def test_einsum_heads_with_the_wrong_groups_is_refused():
    w = quant.prepare_weight("wo", torch.randn(8, 16), use="heads:2")
    with pytest.raises(ShapeContractError, match=r"gemm\.einsum_heads"):
        gemm.einsum_heads(torch.zeros(3, 4, 16), w)
