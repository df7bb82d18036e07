"""The draft head over a whole sequence, plainly from ``spec/model.md`` 2.11; shares no code with the product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from attrs import define
from dense_reference import NEG, DenseReference, Replay, qdq_q8
from torch import Tensor


@define(eq=False)
class Block:
    """Rows of a block before the last norm ``[n, D]``, and their logits without the Markov term ``[n, V]``."""

    rows: Tensor
    base: Tensor


class DraftReference(DenseReference):
    """``propose(ids, token)``: the block behind ``ids``, of which all were computed, and the ``token`` sampled next."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.taps: dict[int, Tensor] = {}

    def mix(self, X: Tensor, prefix: str) -> tuple[Tensor, Tensor, Tensor]:
        part, index, name = prefix.split(".")
        if part == "layers" and name == "hc_attn":
            self.taps[int(index)] = X.mean(1)
        return super().mix(X, prefix)

    @torch.no_grad()
    def propose(self, ids: Sequence[int], token: int, replay: Replay | None = None) -> Block:
        """``replay``: the ids begin with a prefix hit. The window of a draft never reaches before its start."""
        c = self.c
        n, stages, C = c["dspark_block_size"], c["num_nextn_predict_layers"], c["hc_mult"]
        self.run(ids, replay=replay)
        taps = torch.cat([self.taps[layer] for layer in c["dspark_target_layer_ids"]], 1)
        main = self.norm(self.linear(taps, "mtp.0.main_proj"), "mtp.0.main_norm")
        X = self.w["embed.weight"][[token] + [c["dspark_noise_token_id"]] * (n - 1)][:, None].repeat(1, C, 1)
        a = torch.zeros(n, C, dtype=self.dtype)
        a[:, 0] = 1
        for stage in range(stages):
            for kind in ("attn", "ffn"):
                u = (a[..., None] * X).sum(1)
                a, out, B = self.mix(X, f"mtp.{stage}.hc_{kind}")
                x = self.norm(u, f"mtp.{stage}.{kind}_norm")
                y = self._attend(stage, x, main) if kind == "attn" else self._experts(stage, x)
                X = out[..., None] * y[:, None] + torch.einsum("tij,tid->tjd", B, X)
        rows = (a[..., None] * X).sum(1)
        base = self.norm(rows, f"mtp.{stages - 1}.norm") @ self.w["head.weight"].T
        return Block(rows, base)

    def step(self, block: Block, k: int, previous: int) -> tuple[Tensor, Tensor]:
        """Logits and confidence logit of draft ``k`` behind the token ``previous``."""
        p = f"mtp.{self.c['num_nextn_predict_layers'] - 1}"
        embedded = self.w[f"{p}.markov_head.embed.weight"][previous]
        logits = block.base[k] + embedded @ self.w[f"{p}.markov_head.head.weight"].T
        return logits, torch.cat([block.rows[k], embedded]) @ self.w[f"{p}.confidence_head.proj.weight"][0]

    def _keys(self, x: Tensor, p: str, positions: Tensor) -> Tensor:
        k = self.rope(self.norm(self.linear(x, p + "wkv"), p + "kv_norm"), self.angles(positions, 0))
        return qdq_q8(k) if self.caches else k

    def _attend(self, stage: int, x: Tensor, main: Tensor) -> Tensor:
        c, p = self.c, f"mtp.{stage}.attn."
        known, first = torch.arange(len(main)), max(0, len(main) - c["sliding_window"])
        own = len(main) + torch.arange(len(x))
        turn = self.angles(own, 0)
        qr = self.norm(self.linear(x, p + "wq_a"), p + "q_norm")
        q = self.rope(self.linear(qr, p + "wq_b").unflatten(1, (c["num_attention_heads"], c["head_dim"])), turn)
        keys = torch.cat([self._keys(main, p, known)[first:], self._keys(x, p, own)])
        s = torch.einsum("thd,kd->thk", q, keys) * c["head_dim"] ** -0.5
        m = s.amax(-1, keepdim=True).clamp(min=-1e30)
        e = torch.exp(s - m)
        o = (e @ keys) / (e.sum(-1, keepdim=True) + torch.exp(self.w[p + "attn_sink"][None, :, None] - m))
        o = self.rope(o, turn, inverse=True).unflatten(1, (c["o_groups"], -1)).flatten(2)
        wo_a = self.w[p + "wo_a.weight"].unflatten(0, (c["o_groups"], -1))
        return self.linear(torch.einsum("tgi,goi->tgo", o, wo_a).flatten(1), p + "wo_b")

    def _experts(self, stage: int, x: Tensor) -> Tensor:
        c, p = self.c, f"mtp.{stage}.ffn."
        limit = c["swiglu_limit"]
        scores = torch.nn.functional.softplus(self.linear(x, p + "gate"), threshold=20).sqrt()
        ranked = (scores + self.w[p + "gate.bias"]).sort(dim=-1, descending=True, stable=True).indices
        chosen = torch.full_like(scores, NEG).scatter(1, ranked[:, : c["dspark_num_experts_per_tok"]], 0.0) == 0
        weight = torch.where(chosen, scores, 0.0)
        weight = c["routed_scaling_factor"] * weight / weight.sum(-1, keepdim=True)
        y = self._expert(x, p + "shared_experts", torch.ones(len(x), 1), limit)
        for e in range(c["dspark_n_routed_experts"]):
            y = y + self._expert(x, f"{p}experts.{e}", weight[:, e : e + 1], limit)
        return y

    def _expert(self, x: Tensor, name: str, weight: Tensor, limit: float) -> Tensor:
        g, u = self.linear(x, name + ".w1"), self.linear(x, name + ".w3")
        hidden = torch.nn.functional.silu(g.clamp(max=limit)) * u.clamp(-limit, limit)
        return self.linear(weight * hidden, name + ".w2")
