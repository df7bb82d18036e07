"""The whole model over a full sequence, written plainly from ``spec/model.md`` sections 2 and 3.

The oracle of this suite. It reads the checkpoint itself, keeps every value in one floating type, and has no caches,
no chunks and no ops: it shares no code with the product. Switches: cache formats on or off, and which of two equal
scores wins (``spec/model.md`` 2.7 says the lower position; the golden values took the higher one).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from attrs import define, field
from safetensors.torch import load_file
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NEG = float("-inf")


@define
class Trace:
    """What one run did, named as in the golden manifest."""

    logits: Tensor | None = None
    stream_norms: list[Tensor] = field(factory=list)
    sublayer_inputs: list[Tensor] = field(factory=list)
    topk: dict[int, Tensor] = field(factory=dict)
    topk_margin: dict[int, Tensor] = field(factory=dict)
    candidates: dict[int, Tensor] = field(factory=dict)
    candidate_margin: dict[int, Tensor] = field(factory=dict)
    experts: list[Tensor] = field(factory=list)
    expert_gap: list[Tensor] = field(factory=list)
    hashes: Tensor | None = None
    unrounded: dict[tuple[str, int], Tensor] = field(factory=dict)
    """(cache, layer) -> values before the cache format is applied."""
    entries: dict[int, tuple[Tensor, Tensor]] = field(factory=dict)
    """Owner layer -> compressed (keys, index keys) as attention reads them."""


@define
class Replay:
    """A prefix hit (``spec/model.md`` 5.2): rows from ``start`` on see no window key before it, and the entries of the
    first ``hit`` positions are those of the ``cold`` run."""

    start: int
    hit: int
    cold: Trace


def pow2_ceil(v: Tensor) -> Tensor:
    mantissa, exponent = torch.frexp(v)
    return torch.ldexp(torch.ones_like(v), torch.where(mantissa == 0.5, exponent - 1, exponent))


def to_e2m1(x: Tensor) -> Tensor:
    """Nearest of the eight magnitudes; a tie goes to the even code."""
    levels = torch.tensor(E2M1, dtype=x.dtype)
    mag = x.abs().clamp(max=6.0)
    low = (torch.searchsorted(levels, mag.contiguous(), right=True) - 1).clamp(0, 6)
    below, above = levels[low], levels[low + 1]
    up = (mag - below > above - mag) | ((mag - below == above - mag) & (low % 2 == 1))
    return torch.where(up, above, below) * torch.where(torch.signbit(x), -1.0, 1.0).to(x.dtype)


def to_e4m3(x: Tensor) -> Tensor:
    """Nearest E4M3 value, ties to even, saturating; arithmetic only, so that float64 works the same."""
    mag = x.abs().clamp(max=448.0)
    _, exponent = torch.frexp(mag)
    step = torch.ldexp(torch.ones_like(mag), (exponent - 4).clamp(min=-9))
    return torch.round(mag / step) * step * torch.sign(x)


def qdq_q8(x: Tensor) -> Tensor:
    g = x.unflatten(-1, (-1, 32))
    s = pow2_ceil(g.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448.0)
    return (to_e4m3(g / s) * s).flatten(-2)


def qdq_q4mx(x: Tensor) -> Tensor:
    g = x.unflatten(-1, (-1, 32))
    s = pow2_ceil(g.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-126) / 6.0)
    return (to_e2m1(g / s) * s).flatten(-2)


def qdq_q4nv(x: Tensor) -> Tensor:
    g = x.unflatten(-1, (-1, 16))
    sixth = torch.tensor(1 / 6, dtype=torch.float32).to(x.dtype)
    s = to_e4m3((g.abs().amax(-1, keepdim=True).clamp(min=6 * 2.0**-9) * sixth).clamp(max=448.0))
    return (to_e2m1(g * (1.0 / s)) * s).flatten(-2)


def rms(x: Tensor, w: Tensor, eps: float) -> Tensor:
    return w * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))


def is_prime(n: int) -> bool:
    return n > 1 and all(n % d for d in range(2, math.isqrt(n) + 1))


class DenseReference:
    """``run(ids)`` computes every row of one sequence at once.

    :param caches: Apply the cache formats (variant ``kvq``) or not (``plain``).
    :param ties: Which of two equal selection scores wins.
    :param token_map: Compressed id of each token id; None means the identity.
    """

    def __init__(
        self,
        path: Path,
        *,
        dtype: torch.dtype = torch.float32,
        caches: bool = True,
        ties: Literal["lower", "higher"] = "lower",
        token_map: Sequence[int] | None = None,
    ) -> None:
        raw_config = json.loads((path / "config.json").read_text())
        self.c: dict[str, Any] = {**raw_config, **raw_config["text_config"]}
        self.dtype, self.caches, self.ties = dtype, caches, ties
        self.token_map = list(token_map) if token_map is not None else list(range(self.c["vocab_size"]))
        self.w: dict[str, Tensor] = {}
        for shard in sorted(path.glob("*.safetensors")):
            self._read(load_file(shard))
        self._engram()

    # --- weights --------------------------------------------------------------------------------------------------

    def _read(self, raw: Mapping[str, Tensor]) -> None:
        for name, t in raw.items():
            if name.endswith(".scale"):
                continue
            scale_name = name.removesuffix("weight") + "scale"
            if scale_name not in raw or not name.endswith(".weight"):
                self.w[name] = t.to(self.dtype)
                continue
            s = torch.exp2(raw[scale_name].view(torch.uint8).to(self.dtype) - 127)
            if t.dtype == torch.int8:
                b = t.view(torch.uint8).long()
                levels = torch.tensor(E2M1 + tuple(-v for v in E2M1), dtype=self.dtype)
                v = torch.stack([levels[b & 15], levels[b >> 4]], -1).flatten(-2)
                s = s.repeat_interleave(32, 1)
            elif name.endswith("engram.embed.weight"):
                v, s = t.to(self.dtype), s.repeat_interleave(32, 1)
            else:
                v, s = t.to(self.dtype), s.repeat_interleave(32, 0).repeat_interleave(32, 1)
            self.w[name] = v * s[: v.shape[0], : v.shape[1]]

    def _engram(self) -> None:
        c = self.c
        self.primes: dict[int, list[list[int]]] = {}
        self.multipliers: dict[int, list[int]] = {}
        seen: set[int] = set()
        vocab = max(self.token_map) + 1
        for layer in c["engram_layer_ids"]:
            per_order = []
            for _ in range(2, c["engram_max_ngram_size"] + 1):
                cur, heads = c["engram_vocab_size"] - 1, []
                for _ in range(c["engram_n_heads"]):
                    cur += 1
                    while cur in seen or not is_prime(cur):
                        cur += 1
                    seen.add(cur)
                    heads.append(cur)
                per_order.append(heads)
            self.primes[layer] = per_order
            bound = max(1, (np.iinfo(np.int64).max // vocab) // 2)
            draw = np.random.default_rng(10007 * layer).integers(
                0, bound, size=c["engram_max_ngram_size"], dtype=np.int64
            )
            self.multipliers[layer] = [int(m) * 2 + 1 for m in draw]

    def hash_rows(self, ids: Sequence[int]) -> Tensor:
        """``[T, engram layers, columns]`` table rows."""
        c = self.c
        pad = self.token_map[c["engram_pad_token_id"]]
        out = []
        for p in range(len(ids)):
            t = [self.token_map[ids[p - k]] if p - k >= 0 else pad for k in range(c["engram_max_ngram_size"])]
            rows = []
            for layer in c["engram_layer_ids"]:
                h, column, offset = t[0] * self.multipliers[layer][0], [], 0
                for k in range(1, len(t)):
                    h ^= t[k] * self.multipliers[layer][k]
                    for prime in self.primes[layer][k - 1]:
                        column.append(offset + h % prime)
                        offset += prime
                rows.append(column)
            out.append(rows)
        return torch.tensor(out)

    # --- pieces ---------------------------------------------------------------------------------------------------

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.w[name + ".weight"].T

    def norm(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.w[name + ".weight"], self.c["rms_norm_eps"])

    def angles(self, positions: Tensor, ratio: int) -> tuple[Tensor, Tensor]:
        c, rot = self.c, self.c["qk_rope_head_dim"]
        i = torch.arange(rot // 2, dtype=torch.float64)
        if ratio == 0:
            f = float(c["rope_theta"]) ** (-2 * i / rot)
        else:
            s, b = c["rope_scaling"], float(c["compress_rope_theta"])
            g = b ** (-2 * i / rot)
            where = [
                rot * math.log(s["original_max_position_embeddings"] / (2 * math.pi * n)) / (2 * math.log(b))
                for n in (s["beta_fast"], s["beta_slow"])
            ]
            lo, hi = max(math.floor(where[0]), 0), min(math.ceil(where[1]), rot - 1)
            ramp = ((i - lo) / max(hi - lo, 1e-3)).clamp(0, 1)
            f = g * (1 - ramp) + g / s["factor"] * ramp
        a = positions.float()[:, None] * f.float()
        return a.cos().to(self.dtype), a.sin().to(self.dtype)

    def rope(self, x: Tensor, cos_sin: tuple[Tensor, Tensor], inverse: bool = False) -> Tensor:
        """``x [T, ..., d]``; adjacent pairs of the last ``qk_rope_head_dim`` channels turn."""
        rot = self.c["qk_rope_head_dim"]
        cos, sin = cos_sin
        shape = (cos.shape[0],) + (1,) * (x.ndim - 2) + (rot // 2,)
        cos, sin = cos.view(shape), (-sin if inverse else sin).view(shape)
        even, odd = x[..., -rot::2], x[..., -rot + 1 :: 2]
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1).flatten(-2)
        return torch.cat([x[..., :-rot], turned], -1)

    def mix(self, X: Tensor, prefix: str) -> tuple[Tensor, Tensor, Tensor]:
        """(next input mix ``a'``, output mix ``c``, residual mix ``B``) of ``spec/model.md`` 2.4."""
        C, eps = self.c["hc_mult"], self.c["hc_eps"]
        fn, base, scale = (self.w[f"{prefix}_{n}"] for n in ("fn", "base", "scale"))
        z = X.flatten(1)
        m = (z @ fn.T) * torch.rsqrt(z.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        a = torch.sigmoid(m[:, :C] * scale[0] + base[:C]) + eps
        c = 2 * torch.sigmoid(m[:, C : 2 * C] * scale[1] + base[C : 2 * C])
        B = torch.softmax((m[:, 2 * C :] * scale[2] + base[2 * C :]).unflatten(1, (C, C)), -1) + eps
        B = B / (B.sum(1, keepdim=True) + eps)
        for _ in range(self.c["hc_sinkhorn_iters"] - 1):
            B = B / (B.sum(2, keepdim=True) + eps)
            B = B / (B.sum(1, keepdim=True) + eps)
        return a, c, B

    def engram_layer(self, layer: int, X: Tensor, rows: Tensor) -> Tensor:
        c, p = self.c, f"layers.{layer}.engram."
        C, D = c["hc_mult"], c["hidden_size"]
        kv = self.linear(self.w[p + "embed.weight"][rows].flatten(1), p + "wkv")
        k, v = kv[:, : C * D].unflatten(1, (C, D)), kv[:, C * D :]
        w = self.w[p + "q_weight"] * self.w[p + "k_weight"]
        rx, rk = (torch.rsqrt(t.square().mean(-1) + c["rms_norm_eps"]) for t in (X, k))
        d = (X * w * k).sum(-1) * rx * rk * D**-0.5
        g = torch.sigmoid(torch.copysign(d.abs().clamp(min=1e-6).sqrt(), d))
        return X + g[..., None] * v[:, None]

    def best(self, scores: Tensor, k: int) -> Tensor:
        """Mask of the ``k`` best finite scores of each row; ties by the rule of this run."""
        s = scores if self.ties == "lower" else scores.flip(-1)
        order = torch.sort(s, dim=-1, descending=True, stable=True).indices[:, :k]
        mask = torch.zeros_like(s, dtype=torch.bool).scatter_(1, order, True) & (s > NEG)
        return mask if self.ties == "lower" else mask.flip(-1)

    @staticmethod
    def margin(scores: Tensor, chosen: Tensor) -> Tensor:
        worst = torch.where(chosen, scores, float("inf")).amin(-1)
        return worst - torch.where(chosen, NEG, scores).amax(-1)

    def moe(self, layer: int, x: Tensor, trace: Trace) -> Tensor:
        c, p = self.c, f"layers.{layer}.ffn."
        k, E, lim = c["num_experts_per_tok"], c["n_routed_experts"], c["swiglu_limit"] or float("inf")
        z = self.linear(x, p + "gate") / c.get("gate_temp", 1.0)
        sc = torch.nn.functional.softplus(z, threshold=20).sqrt()
        biased = sc + self.w[p + "gate.bias"]
        ranked, order = torch.sort(biased, dim=-1, descending=True, stable=True)
        sel = order[:, :k].sort(-1).values
        trace.experts.append(sel)
        trace.expert_gap.append(ranked[:, k - 1] - ranked[:, k] if k < E else torch.full((len(x),), float("inf")))
        picked = sc.gather(1, sel)
        weight = c["routed_scaling_factor"] * picked / (picked.sum(-1, keepdim=True) + 1e-20)

        def ffn(rows: Tensor, name: str, w: Tensor | float) -> Tensor:
            g, u = self.linear(rows, name + ".w1"), self.linear(rows, name + ".w3")
            h = w * torch.nn.functional.silu(g.clamp(max=lim)) * u.clamp(-lim, lim)
            return self.linear(h, name + ".w2")

        y = torch.zeros_like(x)
        for e in range(E):
            row, slot = (sel == e).nonzero(as_tuple=True)
            if len(row):
                y[row] += ffn(x[row], f"{p}experts.{e}", weight[row, slot, None])
        return y + ffn(x, p + "shared_experts", 1.0)

    # --- attention ------------------------------------------------------------------------------------------------

    def attention(self, layer: int, x: Tensor, shared: dict[str, Any], trace: Trace) -> Tensor:
        c, p, T = self.c, f"layers.{layer}.attn.", len(x)
        r, W, H, d = c["compress_ratios"][layer], c["sliding_window"], c["num_attention_heads"], c["head_dim"]
        pos = torch.arange(T)
        turn = self.angles(pos, r)
        qr = self.norm(self.linear(x, p + "wq_a"), p + "q_norm")
        q = self.rope(self.linear(qr, p + "wq_b").unflatten(1, (H, d)), turn)
        k = self.rope(self.norm(self.linear(x, p + "wkv"), p + "kv_norm"), turn)
        trace.unrounded["swa", layer] = k
        keys = qdq_q8(k) if self.caches else k
        visible = (pos[None, :] <= pos[:, None]) & (pos[None, :] > pos[:, None] - W)
        if (replay := shared.get("replay")) is not None:
            visible &= (pos[None, :] >= replay.start) | (pos[:, None] < replay.start)
        if 1 in c["compress_ratios"][: layer + 1]:  # the decoder half begins at the first layer of ratio 1
            visible &= pos[None, :] >= shared["floor"]
        if r:
            self._compress(layer, r, x, shared, trace)
            self._select(layer, r, x, qr, turn, shared, trace)
            keys = torch.cat([keys, shared["main"]])
            visible = torch.cat([visible, shared["selected"]], 1)
        s = torch.einsum("thd,kd->thk", q, keys) * d**-0.5
        s = s.masked_fill(~visible[:, None], NEG)
        m = s.amax(-1, keepdim=True).clamp(min=-1e30)
        e = torch.exp(s - m)
        o = (e @ keys) / (e.sum(-1, keepdim=True) + torch.exp(self.w[p + "attn_sink"][None, :, None] - m))
        o = self.rope(o, turn, inverse=True).unflatten(1, (c["o_groups"], -1)).flatten(2)
        wo_a = self.w[p + "wo_a.weight"].unflatten(0, (c["o_groups"], -1))
        return self.linear(torch.einsum("tgi,goi->tgo", o, wo_a).flatten(1), p + "wo_b")

    def _compress(self, layer: int, r: int, x: Tensor, shared: dict[str, Any], trace: Trace) -> None:
        c, p = self.c, f"layers.{layer}.attn."
        if layer not in c["kv_source_layer_ids"]:
            return
        n = len(x) // r
        kv = self.linear(x, p + "compressor.wkv")[: n * r].unflatten(0, (n, r))
        if r > 1:
            gate = self.linear(x, p + "compressor.wgate")[: n * r].unflatten(0, (n, r))
            lat = (torch.softmax(gate, 1) * kv).sum(1)
        else:
            lat = kv[:, 0]
        lat = self.norm(lat, p + "compressor.norm")
        turn = self.angles(torch.arange(n) * r, r)
        main = self.rope(lat, turn)
        ik = self.rope(self.norm(self.linear(lat, p + "indexer.wk"), p + "indexer.k_norm"), turn)
        trace.unrounded["main", layer], trace.unrounded["index", layer] = main, ik
        main_format = qdq_q4nv if c.get("use_fp4_sparse_kv", True) else qdq_q8
        shared["main"] = main_format(main) if self.caches else main
        shared["ik"] = qdq_q4mx(ik) if self.caches else ik
        if (replay := shared.get("replay")) is not None:
            for name, known in zip(("main", "ik"), replay.cold.entries[layer], strict=True):
                shared[name] = torch.cat([known[: replay.hit // r], shared[name][replay.hit // r :]])
        trace.entries[layer] = shared["main"], shared["ik"]

    def _select(
        self, layer: int, r: int, x: Tensor, qr: Tensor, turn: Any, shared: dict[str, Any], trace: Trace
    ) -> None:
        c, p, T = self.c, f"layers.{layer}.attn.", len(x)
        if layer not in c["index_source_layer_ids"]:
            return
        hi, di, n = c["index_n_heads"], c["index_head_dim"], len(shared["ik"])
        iq = self.rope(self.linear(qr, p + "indexer.wq_b").unflatten(1, (hi, di)), turn)
        trace.unrounded["iq", layer] = iq
        iq = qdq_q4mx(iq) if self.caches else iq
        weight = self.linear(x, p + "indexer.weights_proj") * (di**-0.5 * hi**-0.5)
        score = (torch.einsum("thd,ed->teh", iq, shared["ik"]).relu() * weight[:, None]).sum(-1)
        count = (torch.arange(T) + 1) // r
        score = score.masked_fill(torch.arange(n)[None] >= count[:, None], NEG)
        source = c.get("candidate_source_layer_id")
        on = source is not None and source >= 0
        if on and layer == source:
            self._candidates(layer, score, count, shared, trace)
        elif on and layer > source and "candidates" in shared:
            score = score.masked_fill(~shared["candidates"], NEG)
        chosen = self.best(score, c["index_topk"])
        shared["selected"] = chosen
        listed = torch.where(chosen, torch.arange(n), n).sort(-1).values[:, : c["index_topk"]]
        listed = torch.where(listed == n, -1, listed)
        trace.topk[layer] = torch.nn.functional.pad(listed, (0, c["index_topk"] - listed.shape[1]), value=-1)
        trace.topk_margin[layer] = self.margin(score, chosen) if n else torch.full((T,), float("inf"))

    def _candidates(self, layer: int, score: Tensor, count: Tensor, shared: dict[str, Any], trace: Trace) -> None:
        size, n = self.c["candidate_block_size"], score.shape[1]
        blocks = -(-n // size)
        best = torch.nn.functional.pad(score, (0, blocks * size - n), value=NEG).unflatten(1, (blocks, size)).amax(-1)
        newest = (count - 1) // size
        forced = (torch.arange(blocks)[None] == newest[:, None]) & (count > 0)[:, None]
        kept = self.best(best.masked_fill(forced, float("inf")), self.c["candidate_topk_blocks"])
        trace.candidate_margin[layer] = self.margin(best.masked_fill(forced, float("inf")), kept)
        shared["candidates"] = kept.repeat_interleave(size, 1)[:, :n]
        trace.candidates[layer] = shared["candidates"]

    # --- whole model ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def run(self, ids: Sequence[int], keep: slice = slice(None), replay: Replay | None = None, floor: int = 0) -> Trace:
        """All rows of one sequence; ``logits`` for the rows in ``keep``. With ``replay`` those from its start count,
        with ``floor`` those from it on: the decoder half sees no window key before it (``spec/model.md`` 5.3)."""
        c, trace = self.c, Trace()
        X = self.w["embed.weight"][list(ids)][:, None].repeat(1, c["hc_mult"], 1)
        a = torch.zeros(len(ids), c["hc_mult"], dtype=self.dtype)
        a[:, 0] = 1
        trace.hashes = self.hash_rows(ids)
        shared: dict[str, Any] = {"replay": replay, "floor": floor}
        for layer in range(c["num_hidden_layers"]):
            trace.stream_norms.append(X.norm(dim=-1))
            if layer in c["engram_layer_ids"]:
                X = self.engram_layer(layer, X, trace.hashes[:, c["engram_layer_ids"].index(layer)])
            for kind in ("attn", "ffn"):
                u = (a[..., None] * X).sum(1)
                trace.sublayer_inputs.append(u)
                a, out, B = self.mix(X, f"layers.{layer}.hc_{kind}")
                x = self.norm(u, f"layers.{layer}.{kind}_norm")
                y = self.attention(layer, x, shared, trace) if kind == "attn" else self.moe(layer, x, trace)
                X = out[..., None] * y[:, None] + torch.einsum("tij,tid->tjd", B, X)
        trace.stream_norms.append(X.norm(dim=-1))
        final = self.norm((a[..., None] * X).sum(1)[keep], "norm")
        trace.logits = final @ self.w["head.weight"].T
        return trace
