"""Streams, gates, experts, rotary positions and reach (``spec/model.md`` 7.9, 7.12 to 7.20, 7.30)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dense_reference import DenseReference
from torch import Tensor
from v41_models import cpu_backend
from v41_tiny import edited, prompt, tiny_driver, tiny_path, tiny_recorded

IDS = prompt(80, seed=6)


def noted_pre(path: Any, **options: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    outputs: list[tuple[Any, ...]] = []

    def note(f: Any) -> Any:
        def op(*args: Any, **kw: Any) -> Any:
            outputs.append(f(*args, **kw))
            return outputs[-1]

        return op

    driver, _ = tiny_recorded(path, extra={"mhc.pre": note, "mhc.head": lambda f: f}, **options)
    return driver, outputs


def test_mixing_coefficients_are_in_their_ranges():
    driver, outputs = noted_pre(tiny_path())
    driver.all_logits(IDS)
    assert len(outputs) == 24
    for _, mix, post, comb in outputs:
        torch.testing.assert_close(comb.sum(1), torch.ones_like(comb.sum(1)), atol=1e-5, rtol=0)
        assert float(mix.min()) > 1e-6
        assert float(mix.max()) <= 1 + 1e-6
        assert float(post.min()) > 0
        assert float(post.max()) < 2


def test_mixing_without_projection_does_not_depend_on_the_input():
    path = edited(tiny_path(), lambda t: {n: torch.zeros_like(w) for n, w in t.items() if n.endswith("_fn")})
    driver, outputs = noted_pre(path)
    driver.all_logits(IDS)
    for _, mix, post, comb in outputs:
        for part in (mix, post, comb):
            torch.testing.assert_close(part, part[:1].expand_as(part), atol=1e-6, rtol=0)


@pytest.mark.parametrize("variant", ["plain", "released"])
def test_first_attention_reads_the_embedding_itself(variant):
    driver, outputs = noted_pre(tiny_path(), variant=variant)
    driver.all_logits(IDS)
    assert torch.equal(outputs[0][0], driver.model._embed[torch.tensor(IDS)])


def test_residual_mix_sums_over_the_source_stream():
    """One large off-diagonal entry: what stream 0 holds must arrive in stream 2, not the other way round."""

    def edit(t: dict[str, Tensor]) -> dict[str, Tensor]:
        base = t["layers.0.hc_attn_base"].clone()
        base[8:] = -8.0
        matrix = base[8:].view(4, 4)
        for source, target in ((0, 2), (1, 0), (2, 1), (3, 3)):
            matrix[source, target] = 8.0
        return {
            "layers.0.hc_attn_base": base,
            "layers.0.hc_attn_fn": torch.zeros_like(t["layers.0.hc_attn_fn"]),
            "layers.0.hc_ffn_fn": torch.zeros_like(t["layers.0.hc_ffn_fn"]),
        }

    path = edited(tiny_path(), edit)
    ids = prompt(70, seed=11)
    want = DenseReference(path, caches=False).run(ids).logits
    torch.testing.assert_close(tiny_driver(path).all_logits(ids), want, atol=1e-4, rtol=0)


def test_sublayer_inputs_match_the_oracle():
    """Each sublayer's input uses the mix that the one before it computed."""
    driver, outputs = noted_pre(tiny_path())
    driver.all_logits(IDS)
    want = DenseReference(tiny_path(), caches=False).run(IDS).sublayer_inputs
    for got, expected in zip(outputs, want, strict=True):
        torch.testing.assert_close(got[0], expected, atol=1e-4, rtol=1e-4)


def test_window_layer_does_not_feel_a_common_shift_of_positions():
    noted: list[Tensor] = []

    def note(f: Any) -> Any:
        def op(y: Tensor, *args: Any, **kw: Any) -> Any:
            noted.append(y)
            return f(y, *args, **kw)

        return op

    driver, _ = tiny_recorded(tiny_path(), extra={"mhc.post": note})
    forward = driver.model.forward
    driver.all_logits(IDS)

    def shifted(inputs: Any, caches: Any) -> Tensor:
        inputs.positions = inputs.positions + 1000
        return forward(inputs, caches)

    driver.model.forward = shifted
    driver.all_logits(IDS)
    half = len(noted) // 2
    torch.testing.assert_close(noted[half], noted[0], atol=2e-4, rtol=0)
    assert not torch.allclose(noted[half + 4], noted[4], atol=2e-4)


def test_rotation_back_gives_the_vector_again():
    ops = cpu_backend().transform
    table = ops.rope_table(500, 16, theta=10000.0)
    x = torch.randn(40, 4, 64, generator=torch.Generator().manual_seed(0))
    rows = ops.rope_rows(table, torch.arange(0, 400, 10, dtype=torch.int32))
    back = ops.fused(ops.fused(x, rope=(rows, False)), rope=(rows, True))
    torch.testing.assert_close(back, x, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("value", "sign"), [(-80.0, "off"), (80.0, "all")])
def test_sink_takes_nothing_or_everything(value, sign):
    outs: list[Tensor] = []

    def note(f: Any) -> Any:
        def op(q: Tensor, keys: Tensor, index: Tensor, *, scale: float, sink: Tensor) -> Any:
            out, lse = f(q, keys, index, scale=scale, sink=torch.full_like(sink, value))
            plain, _ = f(q, keys, index, scale=scale)
            outs.extend([out.clone(), plain])  # the model turns what it got in place
            return out, lse

        return op

    driver, _ = tiny_recorded(tiny_path(), extra={"attn.sparse_prefill": note})
    driver.all_logits(IDS)
    want = outs[1] if sign == "off" else torch.zeros_like(outs[1])
    torch.testing.assert_close(outs[0], want, atol=1e-6, rtol=0)


def test_expert_weights_sum_to_the_scaling_factor():
    weights: list[Tensor] = []

    def note(f: Any) -> Any:
        def op(*args: Any, **kw: Any) -> Any:
            out = f(*args, **kw)
            weights.append(out[1])
            return out

        return op

    driver, _ = tiny_recorded(tiny_path(), extra={"moe.gate": note})
    driver.all_logits(IDS)
    for w in weights:
        torch.testing.assert_close(w.sum(-1), torch.full((len(w),), 1.5), atol=1e-5, rtol=0)


def test_constant_added_to_all_biases_changes_nothing():
    path = edited(tiny_path(), lambda t: {n: b + 0.25 for n, b in t.items() if n.endswith("gate.bias")})
    torch.testing.assert_close(
        tiny_driver(path).all_logits(IDS), tiny_driver(tiny_path()).all_logits(IDS), atol=1e-5, rtol=0
    )


def test_image_bias_does_not_touch_text():
    vision = {"model_type": "deepseek_v41_vision", "num_hidden_layers": 0, "hidden_size": 64, "num_attention_heads": 2}
    vision |= {"intermediate_size": 128, "patch_size": 14, "downsample_ratio": 3}
    path = tiny_path(vision_config=vision)
    changed = edited(path, lambda t: {n: -5 * b for n, b in t.items() if n.endswith("gate.bias_vl")})
    assert torch.equal(tiny_driver(path).all_logits(IDS), tiny_driver(changed).all_logits(IDS))


@pytest.mark.parametrize("variant", ["plain", "kvq", "released"])
def test_all_zero_embedding_gives_finite_logits(variant):
    def edit(t: dict[str, Tensor]) -> dict[str, Tensor]:
        embed = t["embed.weight"].clone()
        embed[7] = 0
        return {"embed.weight": embed}

    driver = tiny_driver(edited(tiny_path(), edit), variant)
    assert torch.isfinite(driver.all_logits([7, 7, 7, 7, 7], split=2)).all()


def test_window_stack_reaches_so_many_tokens_back_and_no_further():
    """Three window layers of 16: rows depend on 46 tokens, and through the Engram of layer 1 on three more."""
    no_global = {
        "num_hidden_layers": 3,
        "compress_ratios": [0, 0, 0, 0, 0, 0],
        "kv_source_layer_ids": [],
        "index_source_layer_ids": [],
        "candidate_source_layer_id": "null",
        "engram_layer_ids": [1],
        "engram_num_embeddings": [1362],
        "dspark_target_layer_ids": [0, 1, 2],
    }
    driver, ids = tiny_driver(tiny_path(**no_global)), prompt(90, seed=12)
    reach = 1 + 3 * 15  # tokens, the row's own included

    def changed_rows(position: int) -> set[int]:
        other = list(ids)
        other[position] = 499 if ids[position] != 499 else 498
        rows = (driver.all_logits(other) != driver.all_logits(ids)).any(-1)
        return set(rows.nonzero().flatten().tolist())

    rows = changed_rows(20)
    # Engram of layer 1 lets token 20 enter rows 20..23 there; two window layers remain: 23 + 2 * 15 = 53 < 20 + 45.
    assert min(rows) == 20
    assert max(rows) == 20 + reach - 1


@pytest.mark.parametrize("spread", [1.0, 50.0])
def test_residual_mix_is_the_sinkhorn_of_the_specification(spread):
    """20 rounds that end on the columns, eps in every denominator; float64 plain reference."""
    drawn = torch.randn(12, 16, generator=torch.Generator().manual_seed(5)).clamp(-1, 1) * spread
    for logits in drawn:
        params = cpu_backend().mhc.prepare(torch.zeros(24, 32), torch.ones(3), torch.cat([torch.zeros(8), logits]))
        comb = cpu_backend().mhc.pre(torch.ones(3, 4, 8), torch.ones(3, 4), params)[3]
        b = torch.softmax(logits.double().view(4, 4), -1) + 1e-6
        b = b / (b.sum(0, keepdim=True) + 1e-6)
        for _ in range(19):
            b = b / (b.sum(1, keepdim=True) + 1e-6)
            b = b / (b.sum(0, keepdim=True) + 1e-6)
        torch.testing.assert_close(comb.double(), b.expand(3, 4, 4), atol=1e-6, rtol=0)


def test_expert_clamps_the_gate_from_above_and_the_value_on_both_sides():
    x = torch.tensor([[50.0, -50.0, 1.0, 1.0, 3.0, 2.0, 50.0, -50.0]])
    got = cpu_backend().moe.swiglu(x, clamp=10.0)
    silu = torch.nn.functional.silu
    g, u = torch.tensor([10.0, -50.0, 1.0, 1.0]), torch.tensor([3.0, 2.0, 10.0, -10.0])
    torch.testing.assert_close(got[0], silu(g) * u, atol=1e-6, rtol=1e-6)
    assert torch.equal(cpu_backend().moe.swiglu(torch.zeros(2, 8), clamp=10.0), torch.zeros(2, 4))
