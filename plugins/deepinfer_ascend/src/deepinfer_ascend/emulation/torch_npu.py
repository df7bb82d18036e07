"""torch-npu: formats of tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.fractal import ND, NZ, Fractals, from_fractals, to_fractals


def npu_format_cast(
    input: Any, acl_format: int, *, customize_dtype: int | None = None, input_dtype: int | None = None
) -> Any:
    """``input`` in another format. Takes ND to NZ and back; a cast to the format that it has gives it as it is.

    The two dtypes are for types that torch has not, and must be left out here.
    """
    if acl_format not in (ND, NZ):
        raise misfit("npu_format_cast", "acl_format", f"{ND} (ND) or {NZ} (NZ)", acl_format)
    if customize_dtype is not None or input_dtype is not None:
        raise misfit("npu_format_cast", "customize_dtype, input_dtype", "left out", (customize_dtype, input_dtype))
    if isinstance(input, Tensor):
        return input if acl_format == ND else to_fractals(input)
    if not isinstance(input, Fractals):
        raise misfit("npu_format_cast", "input", "a tensor", type(input).__name__)
    return input if acl_format == NZ else from_fractals(input)
