"""Finds where two FP32 runs first part, and says why (``golden/README.md``, "How near is near").

A run is a chain of continuous values and discrete choices: cache codes, selections, experts. Continuous values agree to
rounding until a choice differs. So the roots of any difference are choices with no differing choice before them:
"before" is an earlier stage of the model at the same or an earlier position. A root is explained if the choice was a
close call: a cache value next to a rounding midpoint, or scores of nearly equal size.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from attrs import frozen
from dense_reference import DenseReference, Trace, pow2_ceil, qdq_q4mx, qdq_q4nv, qdq_q8, to_e4m3
from torch import Tensor
from v41_driver import Driver
from v41_recording import Recorder

E2M1_MIDPOINTS = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
CODES = ("swa", "main", "index", "iq")
CLOSE_MARGIN = 1e-4
CLOSE_CODE = 1e-5


@frozen(order=True)
class Root:
    """A choice that differs while none before it does. ``closeness``: margin, or relative distance to a midpoint."""

    stage: int
    position: int
    kind: str
    layer: int
    closeness: float

    @property
    def explained(self) -> bool:
        return self.closeness < (CLOSE_CODE if self.kind in CODES else CLOSE_MARGIN)

    def __str__(self) -> str:
        verdict = "a close call" if self.explained else "NOT explained"
        return f"{self.kind} of layer {self.layer}, position {self.position}: {verdict} ({self.closeness:.2e})"


def e4m3_distance(scaled: Tensor) -> Tensor:
    """Distance of magnitudes to the nearest rounding midpoint of E4M3."""
    low = to_e4m3(scaled)
    step = torch.ldexp(torch.ones_like(scaled), (torch.frexp(scaled)[1] - 4).clamp(min=-9))
    return torch.minimum((low + step / 2 - scaled).abs(), (low - step / 2 - scaled).abs())


def code_distance(values: Tensor, differs: Tensor, kind: str) -> Tensor:
    """``[rows]``: how near to another code the codes that differ were, or how near their scale to another scale.

    Distances are relative to the value, or to a tenth of its group's largest one where that is more: rounding noise of
    a sum follows the size of its terms, not of what they cancel to.
    """
    group = 16 if kind == "main" else 32
    g, d = values.float().abs().unflatten(-1, (-1, group)), differs.unflatten(-1, (-1, group))
    amax = g.amax(-1, keepdim=True)
    if kind == "main":
        raw = (amax / 6).clamp(min=2.0**-9, max=448.0)
        scale, scale_gap = to_e4m3(raw), e4m3_distance(raw) / raw
    else:
        raw = amax.clamp(min=1e-4) / 448.0 if kind == "swa" else amax.clamp(min=6 * 2.0**-126) / 6.0
        scale = pow2_ceil(raw)
        scale_gap = (raw / torch.round(torch.log2(raw)).exp2() - 1).abs()
    scaled = g / scale
    gap = e4m3_distance(scaled) if kind == "swa" else (scaled[..., None] - E2M1_MIDPOINTS).abs().amin(-1)
    gap = gap / torch.maximum(scaled, amax / scale / 10).clamp(min=1e-30)
    worst = torch.where(d, torch.minimum(gap, scale_gap), 0.0)
    return worst.amax((-1, -2))


def stored_entries(driver: Driver, table: list[int], layer: int, ratio: int, count: int, name: str) -> Tensor:
    """Entries ``[0, count)`` of a paged cache, dequantised."""
    view = driver.caches.view(name, layer)
    per_block = driver.geometry.block_size // ratio
    segments = [[table[j // per_block], 0, min(per_block, count - j), j] for j in range(0, count, per_block)]
    found = driver.backend.cache.load_segments(
        view, torch.tensor(segments, dtype=torch.int32).reshape(-1, 4), count, dtype=torch.float32
    )
    return found if isinstance(found, Tensor) else found.values


def _roots(differences: Iterable[tuple[int, int, str, int, float]]) -> list[Root]:
    """Differences as (stage, position, kind, layer, closeness); keep those that nothing can have caused."""
    ordered = sorted(differences)
    roots: list[Root] = []
    lowest: dict[int, int] = {}  # stage -> lowest position that differs
    for stage, position, kind, layer, closeness in ordered:
        caused = any(s < stage and p <= position for s, p in lowest.items())
        if not caused:
            roots.append(Root(stage, position, kind, layer, closeness))
        lowest[stage] = min(position, lowest.get(stage, position))
    return roots


def trace_roots(driver: Driver, recorder: Recorder, oracle: DenseReference, ids: list[int]) -> list[Root]:
    """Run ``ids`` through both (one prefill) and return where they part. ``oracle`` must use the driver's tie rule."""
    config = driver.model.config
    recorder.clear()
    sequence = driver.open(ids)
    driver.run([(sequence, len(ids))], prompt=True)
    want = oracle.run(ids)
    ours = recorder.selections()
    experts = recorder.experts()
    windows, queries = recorder.calls["window"], iter(recorder.calls["query"])
    differences: list[tuple[int, int, str, int, float]] = []
    for plan in config.layers[: config.num_hidden_layers]:
        layer, stage = plan.layer, 10 * plan.layer
        differences += _codes(windows[layer][-len(ids) :], want, "swa", layer, stage, 1)
        if plan.has_compressor:
            count = len(ids) // plan.ratio
            for offset, (kind, name) in enumerate((("main", "main"), ("index", "index"))):
                if count:
                    stored = stored_entries(driver, sequence.block_table, layer, plan.ratio, count, name)
                    differences += _codes(stored, want, kind, layer, stage + 1 + offset, plan.ratio)
        if plan.has_indexer:
            differences += _codes(next(queries).flatten(1), want, "iq", layer, stage + 3, 1)
            differences += _selection(want, layer, stage + 5, ours[f"topk.{layer}"])
        if plan.is_candidate_source:
            mask = block_mask(ours[f"candidates.{layer}"], config.candidate_block_size, want.candidates[layer].shape[1])
            rows = mask & visible(len(ids), plan.ratio) != want.candidates[layer] & visible(len(ids), plan.ratio)
            differences += _rows(rows.any(-1), want.candidate_margin[layer], "candidates", layer, stage + 4)
        differences += _rows(
            (experts[layer] != want.experts[layer]).any(-1), want.expert_gap[layer], "experts", layer, stage + 6
        )
    driver.close(sequence)
    return _roots(differences)


def visible(rows: int, ratio: int) -> Tensor:
    """``[rows, entries]``: entries each row may see."""
    return torch.arange(rows // ratio)[None] < ((torch.arange(rows) + 1) // ratio)[:, None]


def block_mask(blocks: Tensor, size: int, width: int) -> Tensor:
    """``[T, width]`` mask of listed blocks."""
    count = -(-width // size)
    mask = torch.zeros(len(blocks), count + 1, dtype=torch.bool)
    mask.scatter_(1, torch.where(blocks >= 0, blocks, count).long(), True)
    return mask[:, :count].repeat_interleave(size, 1)[:, :width]


QDQ = {"swa": qdq_q8, "main": qdq_q4nv, "index": qdq_q4mx, "iq": qdq_q4mx}


def _codes(ours: Tensor, want: Trace, kind: str, layer: int, stage: int, ratio: int) -> list[Any]:
    raw = want.unrounded[kind, layer]
    theirs = QDQ[kind](raw).reshape(ours.shape)
    # Values differ by a whole code step or by nothing: both are exact multiples of exact scales.
    differs = ours.float() != theirs.float()
    rows = differs.any(-1).nonzero().flatten().tolist()
    near = code_distance(raw.reshape(ours.shape), differs, kind)
    return [(stage, e * ratio + ratio - 1, kind, layer, float(near[e])) for e in rows]


def _selection(want: Trace, layer: int, stage: int, selected: Tensor) -> list[Any]:
    theirs = want.topk[layer]
    ours = torch.nn.functional.pad(selected.long(), (0, theirs.shape[1] - selected.shape[1]), value=-1)
    return _rows((ours != theirs).any(-1), want.topk_margin[layer], "topk", layer, stage)


def _rows(differs: Tensor, margin: Tensor, kind: str, layer: int, stage: int) -> list[Any]:
    return [(stage, p, kind, layer, float(margin[p])) for p in differs.nonzero().flatten().tolist()]
