"""How far logits are from the golden values (``golden/README.md``, "How near is near"); for any backend's logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from v41_models import golden, manifest

PROMPTS: Mapping[str, Any] = {p["id"]: p for p in manifest()["prompts"]}
CLOSE = 1e-3
"""A gap between the two best logits below which either may be the token."""


def logprob_distance(logits: Tensor, variant: str, prompt: str) -> Tensor:
    """``[T]``: largest difference of the stored top-20 logprobs."""
    name = f"{variant}.{prompt}"
    mine = logits.log_softmax(-1).gather(1, golden()[f"{name}.top_ids"].long())
    return (mine - golden()[f"{name}.top_logprobs"]).abs().amax(-1)


def divergence(logits: Tensor, variant: str, prompt: str) -> Tensor:
    """KL(golden || ours) at the rows whose logits are stored."""
    want = golden()[f"{variant}.{prompt}.logits"].log_softmax(-1)
    return (want.exp() * (want - logits[-len(want) :].log_softmax(-1))).sum(-1)


def check_exact_logits(variant: str, logits_of: Callable[[str], Tensor]) -> None:
    """The limits of an FP32 engine, over all prompts together. ``logits_of``: prompt id -> ``[T, V]`` on the host."""
    found = {p: logits_of(p) for p in PROMPTS}
    distance = torch.cat([logprob_distance(found[p], variant, p) for p in PROMPTS])
    kl = torch.cat([divergence(found[p], variant, p) for p in PROMPTS])
    assert float(distance.median()) < 1e-4
    assert float(kl.mean()) < (1e-3 if variant == "kvq" else 2e-4)
    if variant == "plain":
        early = torch.cat([logprob_distance(found[p], variant, p)[:16] for p in PROMPTS])
        assert float(early.max()) < 1e-4


def sure(gaps: list[float]) -> int:
    """Tokens before the first close call; those behind it may follow another one."""
    return next((i for i, gap in enumerate(gaps) if gap < CLOSE), len(gaps))
