"""fp32 values by their bits."""

import tilelang.ascend.language as T


def is_nan(value):
    """A comparison of a value with itself would be folded away."""
    return (T.reinterpret(value, T.int32) & 0x7FFFFFFF) > 0x7F800000


def rank_of(value):
    """int64 from 0 on, in the order of fp32 values; both zeros have one."""
    bits = T.if_then_else(value == T.float32(0), 0, T.reinterpret(value, T.int32))
    return T.cast(bits ^ ((bits >> 31) & 0x7FFFFFFF), T.int64) + T.int64(1 << 31)
