"""torch-npu: formats of tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.fractal import ND, NZ, Fractals, from_fractals, to_fractals


def npu_format_cast(tensor: Any, acl_format: int) -> Any:
    """``tensor`` in another format. Takes ND to NZ and back; a cast to the format that it has gives it as it is."""
    if acl_format not in (ND, NZ):
        raise misfit("npu_format_cast", "acl_format", f"{ND} (ND) or {NZ} (NZ)", acl_format)
    if isinstance(tensor, Tensor):
        return tensor if acl_format == ND else to_fractals(tensor)
    if not isinstance(tensor, Fractals):
        raise misfit("npu_format_cast", "tensor", "a tensor", type(tensor).__name__)
    return tensor if acl_format == NZ else from_fractals(tensor)
