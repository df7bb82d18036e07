"""What experts made of a token, added up."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.jit.serving.parts import Served, run

NAMES = {torch.bfloat16: "bfloat16", torch.float32: "float32"}


def combine(served: Served, y: Tensor, handle: Any, *, bias: Tensor | None = None) -> Tensor:
    """``moe.combine`` where all tensors have the dtype of the tokens."""
    fits = y.dim() == 2 and y.dtype in NAMES and y.dtype == handle.dtype and len(y) == handle.sent and y.numel() > 0
    rows, shape = handle.rows, (handle.tokens, y.shape[-1])
    if not fits or not rows.numel() or not (bias is None or (bias.shape == shape and bias.dtype == y.dtype)):
        return served.op(y, handle, bias=bias)  # type: ignore[no-any-return]
    out = torch.empty(shape, dtype=y.dtype)
    sizes = {"width": shape[1], "choices": rows.shape[1], "biased": bias is not None, "dtype": NAMES[y.dtype]}
    given = {"y": y.contiguous(), "places": rows.int().contiguous(), "out": out, "rows": len(out), "sent": len(y)}
    if bias is not None:
        given["bias"] = bias.contiguous()
    run("combine_rows", len(out), sizes, **given)
    return out


SERVED = {"moe.combine": combine}
