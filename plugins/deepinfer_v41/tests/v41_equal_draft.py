"""A random checkpoint made into one whose draft head proposes exactly what the model will say."""

from __future__ import annotations

import torch
from torch import Tensor


def equal_to_the_model(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Every sublayer adds nothing, so the next token depends on the current one only; the Markov head knows it."""
    for name, tensor in tensors.items():
        if name.endswith(("wo_b.weight", "w2.weight", "engram.wkv.weight", "mtp.2.norm.weight")):
            tensor.view(torch.uint8).zero_()
    embed, head = tensors["embed.weight"].float(), tensors["head.weight"]
    normed = embed * torch.rsqrt(embed.square().mean(-1, keepdim=True))
    return {
        "mtp.2.markov_head.embed.weight": normed.to(torch.bfloat16),
        "mtp.2.markov_head.head.weight": head.clone(),
    }
