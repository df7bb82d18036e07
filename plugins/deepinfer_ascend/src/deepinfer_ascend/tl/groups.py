"""Rows quantised in groups, on a core: what casts and stores share.

Every value that an expression needs more than once is held in a variable of its own: the passes expand what is not.
"""

import tilelang.ascend.language as T

from deepinfer_ascend.tl.codes import code_of, code_value, scale_byte, scale_inverse, scale_value
from deepinfer_ascend.tl.numbers import is_nan


@T.macro
def quantise(held, made, scales, groups: int, group: int, fmt: str, sf: str, threads: int):
    """bf16 ``held`` -> codes ``made`` uint8 (two a byte of E2M1, the even one low), scale bytes ``scales`` uint8. A
    thread takes a group."""
    peak = T.alloc_local((1,), T.float32)
    inverse = T.alloc_local((1,), T.float32)
    value = T.alloc_local((1,), T.float32)
    byte = T.alloc_local((1,), T.int32)
    code = T.alloc_local((1,), T.int32)
    for turn in T.serial(-(-groups // threads)):
        g = turn * threads + T.get_thread_binding()
        if g < groups:
            peak[0] = T.float32(0)
            for i in T.serial(group):
                value[0] = T.cast(held[g * group + i], T.float32)
                if is_nan(value[0]) or is_nan(peak[0]):
                    peak[0] = T.float32(float("nan"))
                else:
                    peak[0] = T.max(peak[0], T.abs(value[0]))
            byte[0] = scale_byte(peak[0], fmt, sf)
            inverse[0] = scale_inverse(byte[0], sf)
            scales[g] = T.cast(byte[0], T.uint8)
            if fmt == "e4m3":
                for i in T.serial(group):
                    value[0] = T.cast(held[g * group + i], T.float32) * inverse[0]
                    made[g * group + i] = T.cast(code_of(value[0], fmt), T.uint8)
            else:
                for i in T.serial(group // 2):
                    value[0] = T.cast(held[g * group + 2 * i], T.float32) * inverse[0]
                    code[0] = code_of(value[0], fmt)
                    value[0] = T.cast(held[g * group + 2 * i + 1], T.float32) * inverse[0]
                    code[0] = code[0] | (code_of(value[0], fmt) << 4)
                    made[g * (group // 2) + i] = T.cast(code[0], T.uint8)


@T.macro
def dequantise(made, scales, out, width: int, group: int, fmt: str, sf: str, dtype: str, threads: int):
    """Codes and scale bytes of a row -> ``out`` of ``dtype``."""
    scale = T.alloc_local((1,), T.float32)
    byte = T.alloc_local((1,), T.int32)
    code = T.alloc_local((1,), T.int32)
    for turn in T.serial(-(-width // threads)):
        i = turn * threads + T.get_thread_binding()
        if i < width:
            byte[0] = T.cast(scales[i // group], T.int32)
            scale[0] = scale_value(byte[0], sf)
            if fmt == "e4m3":
                code[0] = T.cast(made[i], T.int32)
            else:
                code[0] = (T.cast(made[i // 2], T.int32) >> (i % 2 * 4)) & 15
            out[i] = T.cast(code_value(code[0], fmt) * scale[0], dtype)
