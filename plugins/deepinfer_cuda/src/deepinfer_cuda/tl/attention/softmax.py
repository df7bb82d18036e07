"""What all attention kernels do alike: powers of two for exponentials, the sink, the log-sum-exp."""

from __future__ import annotations

from typing import Any

import tilelang.language as T

TILE = 64
"""Keys of a tile, and heads of a block: the rows of one matrix instruction of a warpgroup."""
LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
LOWEST = -1e30
"""A running maximum without keys. Finite: the difference of two such is 0 and not NaN."""


def exp2(x: Any) -> Any:
    """2^x by the special function unit, 2 ulp; 0 for -inf."""
    return T.call_pure_extern("float32", "di::exp2_fast", x)


def inverse_total(total: Any, top: Any, sink: Any, has_sink: Any, head: Any) -> Any:
    """1 / (total + sink's share). The largest key contributes 1, so only a row without keys is below: it divides 0."""
    share = exp2(sink[T.if_then_else(has_sink == 0, 0, head)] * LOG2E - top)
    return 1.0 / T.max(total + T.if_then_else(has_sink == 0, 0.0, share), 1.0)


def log_sum(total: Any, top: Any) -> Any:
    """Natural logarithm of the sum of exponentials, without the sink; +inf where there is no key."""
    return T.if_then_else(total == 0, T.infinity("float32"), (top + T.log2(total)) * LN2)


def on_hopper() -> bool:
    """Whether the target has wgmma, the matrix instruction that runs beside other work."""
    from tilelang import tvm

    return str(tvm.target.Target.current().attrs["arch"]).startswith("sm_90")
