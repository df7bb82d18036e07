"""The dense oracle with every rounding of numeric mode ``released`` (``spec/model.md`` 2), one layer at a time.

BF16 noise grows from layer to layer until nothing can be said, so each layer starts from given streams: those of the
run that is checked. What a layer makes of equal inputs differs only where a sum in another order crosses a midpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from attrs import define
from dense_reference import NEG, DenseReference, Trace, qdq_q8, rms
from safetensors.torch import load_file
from torch import Tensor


def half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).float()


@define
class LayerRun:
    """Streams ``[T, C, D]`` and input mix ``[T, C]`` after one layer."""

    streams: Tensor
    mix: Tensor


class ReleasedReference(DenseReference):
    """``layers(ids, inputs)`` runs each layer on its given input."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        names = load_file(path / "model.safetensors")
        self.quantised = {n.removesuffix(".scale") for n in names if n.endswith(".scale")}

    def linear(self, x: Tensor, name: str) -> Tensor:
        """LIN8 and LIN4 quantise their input; the router and a compressor of pairs stay FP32 (LINF)."""
        y = super().linear(qdq_q8(x) if name in self.quantised else x, name)
        pairs = f"{name.rsplit('.', 1)[0]}.wgate.weight" in self.w
        return y if name.endswith("ffn.gate") or (".compressor." in name and pairs) else half(y)

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Its input is BF16; a pair's latent comes unrounded from its softmax."""
        return half(rms(half(x), self.w[name + ".weight"], self.c["rms_norm_eps"]))

    def rope(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], inverse: bool = False) -> Tensor:
        return half(super().rope(x, cos_sin, inverse))

    def engram_layer(self, layer: int, X: Tensor, rows: Tensor) -> Tensor:
        return half(super().engram_layer(layer, X, rows))

    def attention(self, layer: int, x: Tensor, shared: dict[str, Any], trace: Trace) -> Tensor:
        c, p, T = self.c, f"layers.{layer}.attn.", len(x)
        r, W, H, d = c["compress_ratios"][layer], c["sliding_window"], c["num_attention_heads"], c["head_dim"]
        pos = torch.arange(T)
        turn = self.angles(pos, r)
        qr = self.norm(self.linear(x, p + "wq_a"), p + "q_norm")
        q = self.rope(self.linear(qr, p + "wq_b").unflatten(1, (H, d)), turn)
        keys = qdq_q8(self.rope(self.norm(self.linear(x, p + "wkv"), p + "kv_norm"), turn))
        visible = (pos[None, :] <= pos[:, None]) & (pos[None, :] > pos[:, None] - W)
        if r:
            self._compress(layer, r, x, shared, trace)
            self._select(layer, r, x, qr, turn, shared, trace)
            keys = torch.cat([keys, shared["main"]])
            visible = torch.cat([visible, shared["selected"]], 1)
        s = (torch.einsum("thd,kd->thk", q, keys) * d**-0.5).masked_fill(~visible[:, None], NEG)
        m = s.amax(-1, keepdim=True)
        e = torch.exp(s - m)
        total = e.sum(-1, keepdim=True) + torch.exp(self.w[p + "attn_sink"][None, :, None] - m)
        o = self.rope(half(half(e) @ keys / total), turn, inverse=True)
        o = o.unflatten(1, (c["o_groups"], -1)).flatten(2)
        z = half(torch.einsum("tgi,goi->tgo", o, self.w[p + "wo_a.weight"].unflatten(0, (c["o_groups"], -1))))
        return self.linear(z.flatten(1), p + "wo_b")

    def moe(self, layer: int, x: Tensor, trace: Trace) -> Tensor:
        c, p, lim = self.c, f"layers.{layer}.ffn.", self.c["swiglu_limit"]
        scores = torch.nn.functional.softplus(self.linear(x, p + "gate"), threshold=20).sqrt()
        order = torch.sort(scores + self.w[p + "gate.bias"], dim=-1, descending=True, stable=True).indices
        chosen = order[:, : c["num_experts_per_tok"]].sort(-1).values
        weight = scores.gather(1, chosen)
        weight = c["routed_scaling_factor"] * weight / (weight.sum(-1, keepdim=True) + 1e-20)

        def ffn(rows: Tensor, name: str, w: Tensor | float) -> Tensor:
            g, u = self.linear(rows, name + ".w1"), self.linear(rows, name + ".w3")
            return self.linear(half(w * torch.nn.functional.silu(g.clamp(max=lim)) * u.clamp(-lim, lim)), name + ".w2")

        y = torch.zeros_like(x)
        for e in range(c["n_routed_experts"]):
            row, place = (chosen == e).nonzero(as_tuple=True)
            if len(row):
                y[row] += ffn(x[row], f"{p}experts.{e}", weight[row, place, None])
        return half(y + ffn(x, p + "shared_experts", 1.0))

    @torch.no_grad()
    def layers(self, ids: Sequence[int], inputs: Sequence[LayerRun]) -> list[LayerRun]:
        """Each layer's result on ``inputs[layer]``; caches, selections and candidates flow from layer to layer."""
        c, trace, shared, out = self.c, Trace(), {}, []
        hashes = self.hash_rows(ids)
        for layer, given in enumerate(inputs):
            X, a = given.streams.float(), given.mix
            if layer in c["engram_layer_ids"]:
                X = self.engram_layer(layer, X, hashes[:, c["engram_layer_ids"].index(layer)])
            for kind in ("attn", "ffn"):
                u = half((a[..., None] * X).sum(1))
                a, post, B = self.mix(X, f"layers.{layer}.hc_{kind}")
                x = self.norm(u, f"layers.{layer}.{kind}_norm")
                y = self.attention(layer, x, shared, trace) if kind == "attn" else self.moe(layer, x, trace)
                X = half(post[..., None] * y[:, None] + torch.einsum("tij,tid->tjd", B, X))
            out.append(LayerRun(X, a))
        return out
