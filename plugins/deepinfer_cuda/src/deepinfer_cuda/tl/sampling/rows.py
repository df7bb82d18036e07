"""What kernels over rows of logits share: the functions of ``rows.cuh``, and how a row is read."""

from importlib.resources import files
from typing import Any

import tilelang.language as T

ROWS = files(__package__).joinpath("rows.cuh").read_text(encoding="utf-8")
"""CUDA text of the functions: the ``prelude`` of a kernel."""
WARP = 32


def pure(dtype: str, name: str, *args: Any) -> Any:
    """A function of ``rows.cuh`` that depends on its arguments alone."""
    return T.call_pure_extern(dtype, name, *args)


@T.macro
def read(values, logits, row, column, width: int, vector: int):
    """``vector`` logits from ``column`` on; what lies behind the row counts as -inf."""
    if column < width:
        T.call_extern("handle", f"di_load<{vector}>", T.address_of(values[0]), T.address_of(logits[row, column]))
    else:
        for v in T.unroll(vector):
            values[v] = -T.infinity("float32")
