"""Mixture of experts against a loop over tokens and experts."""

import math

import pytest
import torch

from deepinfer_core.errors import ShapeContractError, UnsupportedFeature
from deepinfer_cpu.ops import moe, quant

T, HIDDEN, WIDTH, EXPERTS, K = 9, 64, 32, 6, 2


@pytest.fixture
def weights():
    def fp4(out: int, inp: int):
        codes = torch.randint(0, 256, (out, inp // 2), dtype=torch.uint8).view(torch.int8)
        return codes, torch.full((out, inp // 32), 123, dtype=torch.uint8)

    up = [[fp4(WIDTH, HIDDEN), fp4(WIDTH, HIDDEN)] for _ in range(EXPERTS)]
    down = [fp4(HIDDEN, WIDTH) for _ in range(EXPERTS)]
    w1 = quant.prepare_weight("w1", [[w for w, _ in p] for p in up], [[s for _, s in p] for p in up], use="experts")
    w2 = quant.prepare_weight("w2", [w for w, _ in down], [s for _, s in down], use="experts")
    return w1, w2


def router() -> object:
    return quant.prepare_weight("gate", torch.randn(EXPERTS, HIDDEN))


def plain_scores(logit: float) -> float:
    return math.sqrt(logit if logit > 20 else math.log1p(math.exp(logit)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gate_chooses_by_biased_score_and_weighs_by_the_plain_one(dtype):
    x, w, bias = torch.randn(T, HIDDEN).to(dtype), router(), torch.randn(EXPERTS) * 0.3
    other, image = torch.randn(EXPERTS), torch.arange(T) % 3 == 0
    idx, weight = moe.gate(x, w, bias, k=K, scale=1.5, temperature=0.7, bias_image=other, image_rows=image)
    logits = (x.double() @ w.matrix.double() / 0.7).tolist()
    for t in range(T):
        scores = [plain_scores(z) for z in logits[t]]
        b = (other if image[t] else bias).tolist()
        best = sorted(range(EXPERTS), key=lambda e: (-(scores[e] + b[e]), e))[:K]
        assert idx[t].tolist() == best
        total = sum(scores[e] for e in best)
        assert weight[t].tolist() == pytest.approx([1.5 * scores[e] / total for e in best], rel=1e-5)
    assert idx.dtype == torch.int64


def test_gate_of_equal_scores_takes_the_lower_ids_first():
    idx, weight = moe.gate(torch.zeros(3, HIDDEN), router(), torch.zeros(EXPERTS), k=4, scale=1.0)
    assert idx.tolist() == [[0, 1, 2, 3]] * 3
    torch.testing.assert_close(weight, torch.full((3, 4), 0.25))


def test_gate_ignores_a_constant_added_to_all_biases():
    x, w, bias = torch.randn(T, HIDDEN), router(), torch.randn(EXPERTS)
    one, two = (moe.gate(x, w, b, k=K, scale=1.5) for b in (bias, bias + 8.0))
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1], two[1])


def test_gate_weights_sum_to_the_scale():
    _, weight = moe.gate(torch.randn(T, HIDDEN), router(), torch.zeros(EXPERTS), k=K, scale=1.5)
    torch.testing.assert_close(weight.sum(1), torch.full((T,), 1.5))


def test_gate_masked_rows_have_no_experts():
    mask = torch.tensor([True, False] + [True] * (T - 2))
    idx, weight = moe.gate(torch.randn(T, HIDDEN), router(), torch.zeros(EXPERTS), k=K, scale=1.0, mask=mask)
    assert idx[1].tolist() == [-1, -1]
    assert weight[1].tolist() == [0.0, 0.0]


def test_sqrt_softplus_of_extreme_logits_is_finite_and_precise():
    z = torch.tensor([[-80.0, -15.0, 0.0, 19.9, 20.1, 1e4]])
    torch.testing.assert_close(
        moe.sqrt_softplus(z).double(),
        torch.tensor([[plain_scores(v) for v in z[0].tolist()]]).double(),
        rtol=1e-6,
        atol=0,
    )


def plain_moe(x, idx, weight, w1, w2, clamp, shared):
    """Token by token, ascending expert id, in double precision with the roundings of mode ``released``."""
    quantised = quant.cast_per_token(x).values.double()
    out = torch.zeros(x.shape[0], HIDDEN, dtype=torch.float64)
    for t in range(x.shape[0]):
        for e, w in sorted(zip(idx[t].tolist(), weight[t].tolist(), strict=True)):
            if e < 0:
                continue
            both = (quantised[t] @ w1.matrix[e].double()).float().bfloat16().double()
            g, u = both[:WIDTH].clamp(max=clamp), both[WIDTH:].clamp(-clamp, clamp)
            hidden = (w * g / (1 + (-g).exp()) * u).float().bfloat16()
            out[t] += (quant.cast_per_token(hidden).values.double() @ w2.matrix[e].double()).float().bfloat16().double()
    return (out + shared.double()).float().bfloat16()


@pytest.mark.parametrize("clamp", [0.5, 10.0])
def test_moe_in_bf16_equals_the_loop(weights, clamp):
    x = torch.randn(T, HIDDEN).bfloat16()
    idx, weight = moe.gate(x, router(), torch.zeros(EXPERTS), k=K, scale=1.5)
    idx[4], weight[4] = -1, 0.0
    shared = torch.randn(T, HIDDEN).bfloat16()
    sent = moe.dispatch(quant.cast_per_token(x), idx, weight)
    y = moe.combine(moe.experts(sent, *weights, clamp=clamp), sent.handle, bias=shared)
    expected = plain_moe(x, idx, weight, *weights, clamp, shared)
    assert y.dtype == torch.bfloat16
    assert (y == expected).float().mean() > 0.97
    torch.testing.assert_close(y.double(), expected.double(), rtol=2e-2, atol=expected.abs().max().item() * 2e-2)


def test_moe_in_fp32_without_cast_equals_double_precision(weights):
    w1, w2 = weights
    x = torch.randn(T, HIDDEN)
    idx, weight = moe.gate(x, router(), torch.zeros(EXPERTS), k=K, scale=1.5)
    sent = moe.dispatch(x, idx, weight)
    y = moe.combine(moe.experts(sent, w1, w2, clamp=10.0, cast=None), sent.handle)
    expected = torch.zeros(T, HIDDEN, dtype=torch.float64)
    for t in range(T):
        for e, w in zip(idx[t].tolist(), weight[t].tolist(), strict=True):
            both = x[t].double() @ w1.matrix[e].double()
            g, u = both[:WIDTH].clamp(max=10.0), both[WIDTH:].clamp(-10.0, 10.0)
            expected[t] += (w * g / (1 + (-g).exp()) * u) @ w2.matrix[e].double()
    assert y.dtype == torch.float32
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=expected.abs().max().item() * 1e-6)


@pytest.mark.parametrize("chosen", [[[3, 1]], [[5, 5]], [[-1, -1], [-1, -1]], [[-1, 4]], [[2, 0], [0, 2], [2, 1]]])
def test_dispatch_sorts_by_expert_then_token(chosen):
    idx = torch.tensor(chosen)
    weight = torch.rand(idx.shape)
    sent = moe.dispatch(torch.arange(float(idx.shape[0])).unsqueeze(1), idx, weight)
    pairs = sorted((e, t, c) for t, row in enumerate(chosen) for c, e in enumerate(row) if e >= 0)
    assert sent.x.flatten().tolist() == [float(t) for _, t, _ in pairs]
    assert sent.weight.tolist() == [weight[t, c].item() for _, t, c in pairs]
    spans = [(e, b, c) for e, b, c in sent.segments]
    assert [e for e, b, c in spans for _ in range(b, c)] == [e for e, _, _ in pairs]


def test_swiglu_clamps_the_gate_from_above_only_and_the_other_from_both_sides():
    x = torch.tensor([[12.0, -12.0, 1.0, 1.0, 1.0, 1.0, 12.0, -12.0]])
    y = moe.swiglu(x, clamp=10.0)

    def silu(v: float) -> float:
        return v / (1 + math.exp(-v))

    torch.testing.assert_close(y, torch.tensor([[silu(10), silu(-12), silu(1) * 10, silu(1) * -10]]))
    torch.testing.assert_close(moe.swiglu(x, clamp=0.0)[0, 0].item(), silu(12), rtol=1e-6, atol=0)


def test_swiglu_of_a_very_negative_gate_is_zero_not_nan():
    assert moe.swiglu(torch.tensor([[-1000.0, 1.0]]), clamp=10.0).tolist() == [[-0.0]]


def test_experts_with_zero_input_give_zero(weights):
    idx, weight = torch.tensor([[0, 3]]), torch.ones(1, 2)
    sent = moe.dispatch(quant.cast_per_token(torch.zeros(1, HIDDEN).bfloat16()), idx, weight)
    assert not moe.experts(sent, *weights, clamp=10.0).any()


def test_experts_with_a_weight_of_another_width_are_refused(weights):
    sent = moe.dispatch(torch.zeros(1, HIDDEN + 32), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1))
    with pytest.raises(ShapeContractError, match=r"moe\.experts"):
        moe.experts(sent, *weights, clamp=10.0)


def test_gate_with_replicas_is_refused_with_a_remedy():
    with pytest.raises(UnsupportedFeature, match=r"moe\.gate") as caught:
        moe.gate(torch.zeros(1, HIDDEN), router(), torch.zeros(EXPERTS), k=1, scale=1.0, placement=object())
    assert caught.value.remedy


def test_dispatch_over_a_group_is_refused_with_a_remedy():
    with pytest.raises(UnsupportedFeature, match="expert groups"):
        moe.dispatch(torch.zeros(1, 4), torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1), group="ep")


def test_gate_of_a_broken_row_leaves_the_others_whole():
    x, w = torch.randn(T, HIDDEN), router()
    idx, weight = moe.gate(x, w, torch.zeros(EXPERTS), k=K, scale=1.5)
    x[4, 0] = math.nan
    broken_idx, broken_weight = moe.gate(x, w, torch.zeros(EXPERTS), k=K, scale=1.5)
    others = [t for t in range(T) if t != 4]
    assert torch.equal(idx[others], broken_idx[others])
    assert torch.equal(weight[others], broken_weight[others])
    assert ((broken_idx >= 0) & (broken_idx < EXPERTS)).all()
    assert broken_weight[4].isnan().all()


def test_combine_adds_in_ascending_expert_id_and_the_shared_expert_last():
    """In fp32 the order shows: only (1e8 - 1e8) + 1 is 1."""
    index, weight = torch.tensor([[2, 0, 1], [1, 2, 0]]), torch.ones(2, 3)
    dispatched = moe.dispatch(torch.zeros(2, 4), index, weight, group=None)
    value = torch.tensor([1e8, -1e8, 1.0])
    rows = torch.cat([value[e].expand(end - begin, 4) for e, begin, end in dispatched.segments])
    assert torch.equal(moe.combine(rows, dispatched.handle), torch.ones(2, 4))
    apart = torch.tensor([2.0**-24, 1.0, -1.0])  # 2^-24 is lost beside 1: the shared expert must come last to keep it
    rows = torch.cat([apart[e].expand(end - begin, 4) for e, begin, end in dispatched.segments])
    shared = torch.full((2, 4), 2.0**-24)
    assert torch.equal(moe.combine(rows, dispatched.handle, bias=shared), shared)
