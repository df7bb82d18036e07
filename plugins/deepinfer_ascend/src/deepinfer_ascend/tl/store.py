"""Entries of caches: rows quantised by the format and written (``cache.store``), runs read (``cache.load_segments``).

A cache is flat, from its first entry on: bytes, or numbers where the format stores plain ones. A unit has ``page``
entries and begins ``stride`` elements behind the one before.
"""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel
from deepinfer_ascend.tl.groups import dequantise, quantise
from deepinfer_core.caches.formats import lookup


def _data(layout, unit, entry, page, stride, data: int, scale: int):
    """Where an entry's data begins. A page has data and scales of an entry side by side, or all of the data first."""
    step = data if layout.split_page else data + scale
    return T.cast(unit, T.int64) * stride + T.cast(entry * step, T.int64)


def _scales(layout, at, entry, page, data: int, scale: int):
    """Where its scales begin, if its data does at ``at``."""
    if layout.split_page:
        return at + T.cast((page - entry) * data + entry * scale, T.int64)
    return at + T.int64(data)


@kernel
def store_entries(*, format: str, width: int, values: bool = False, threads: int = 128):
    """bf16 ``[rows, width]`` at ``slots`` int32 ``[rows]``, -1: nowhere; with ``values``, what is stored also goes to
    ``kept`` fp32 ``[rows, width]``, of every row."""
    layout, rows, size = lookup(format), T.dynamic("rows"), T.dynamic("size")
    fmt, group, sf = layout.fmt, layout.group_of(width), layout.sf_kind
    data, groups = layout.data_bytes(width), width // layout.group_of(width)

    @T.prim_func
    def store_entries(
        x: T.Tensor((rows, width), T.bfloat16),
        slots: T.Tensor((rows,), T.int32),
        cache: T.Tensor((size,), T.uint8),
        kept: T.Tensor((rows, width), T.float32),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            made = T.alloc_shared((data,), T.uint8)
            scales = T.alloc_shared((groups,), T.uint8)
            back = T.alloc_shared((width if values else 8,), T.float32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    slot = slots[row]
                    if values or slot >= 0:
                        T.copy(x[row, 0:width], held)
                        with T.SimtVF(threads=threads):
                            quantise(held, made, scales, groups, group, fmt, sf, threads)
                            if values:
                                T.sync_threads()
                                dequantise(made, scales, back, width, group, fmt, sf, "float32", threads)
                        if values:
                            T.copy(back, kept[row, 0:width])
                        if slot >= 0:
                            at = _data(layout, slot // page, slot % page, page, stride, data, groups)
                            behind = _scales(layout, at, slot % page, page, data, groups)
                            T.copy(made, cache[at : at + data])
                            T.copy(scales, cache[behind : behind + groups])

    return store_entries


@kernel
def store_numbers(*, width: int, dtype: str, threads: int = 128):
    """bf16 ``[rows, width]`` as plain numbers of ``dtype`` at ``slots`` int32 ``[rows]``, -1: nowhere."""
    rows, size = T.dynamic("rows"), T.dynamic("size")

    @T.prim_func
    def store_numbers(
        x: T.Tensor((rows, width), T.bfloat16),
        slots: T.Tensor((rows,), T.int32),
        cache: T.Tensor((size,), dtype),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), T.bfloat16)
            made = T.alloc_shared((width,), dtype)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    slot = slots[row]
                    if slot >= 0:
                        T.copy(x[row, 0:width], held)
                        with T.SimtVF(threads=threads):
                            for i in T.Parallel(width):
                                made[i] = T.cast(held[i], dtype)
                        at = T.cast(slot // page, T.int64) * stride + T.cast(slot % page * width, T.int64)
                        T.copy(made, cache[at : at + width])

    return store_numbers


@kernel
def load_runs(*, format: str, width: int, dtype: str = "bfloat16", threads: int = 128):
    """Runs of entries as numbers ``y`` ``[total, width]``: ``segments`` int32 ``[runs, 4]`` of unit (-1: nothing is
    written), begin, end and first row. Rows of a run are dealt out to the cores."""
    layout, runs, total, size = lookup(format), T.dynamic("runs"), T.dynamic("total"), T.dynamic("size")
    fmt, group, sf = layout.fmt, layout.group_of(width), layout.sf_kind
    data, groups = layout.data_bytes(width), width // layout.group_of(width)

    @T.prim_func
    def load_runs(
        cache: T.Tensor((size,), T.uint8),
        segments: T.Tensor((runs, 4), T.int32),
        y: T.Tensor((total, width), dtype),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((data,), T.uint8)
            scales = T.alloc_shared((groups,), T.uint8)
            made = T.alloc_shared((width,), dtype)
            for run in T.serial(runs):
                for step in T.serial(T.ceildiv(segments[run, 2] - segments[run, 1], VECTOR_CORES)):
                    row = step * VECTOR_CORES + core
                    if row < segments[run, 2] - segments[run, 1] and segments[run, 0] >= 0:
                        entry = segments[run, 1] + row
                        unit = segments[run, 0] + entry // page
                        at = _data(layout, unit, entry % page, page, stride, data, groups)
                        behind = _scales(layout, at, entry % page, page, data, groups)
                        T.copy(cache[at : at + data], held)
                        T.copy(cache[behind : behind + groups], scales)
                        with T.SimtVF(threads=threads):
                            dequantise(held, scales, made, width, group, fmt, sf, dtype, threads)
                        T.copy(made, y[segments[run, 3] + row, 0:width])

    return load_runs


@kernel
def load_numbers(*, width: int, stored: str, dtype: str = "bfloat16", threads: int = 128):
    """As ``load_runs``, of caches of plain numbers of type ``stored``."""
    runs, total, size = T.dynamic("runs"), T.dynamic("total"), T.dynamic("size")

    @T.prim_func
    def load_numbers(
        cache: T.Tensor((size,), stored),
        segments: T.Tensor((runs, 4), T.int32),
        y: T.Tensor((total, width), dtype),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((width,), stored)
            made = T.alloc_shared((width,), dtype)
            for run in T.serial(runs):
                for step in T.serial(T.ceildiv(segments[run, 2] - segments[run, 1], VECTOR_CORES)):
                    row = step * VECTOR_CORES + core
                    if row < segments[run, 2] - segments[run, 1] and segments[run, 0] >= 0:
                        entry = segments[run, 1] + row
                        unit = segments[run, 0] + entry // page
                        at = T.cast(unit, T.int64) * stride + T.cast(entry % page * width, T.int64)
                        T.copy(cache[at : at + width], held)
                        with T.SimtVF(threads=threads):
                            for i in T.Parallel(width):
                                made[i] = T.cast(held[i], dtype)
                        T.copy(made, y[segments[run, 3] + row, 0:width])

    return load_numbers


@kernel
def load_codes(*, format: str, width: int):
    """As ``load_runs``, the bytes as they are: ``codes`` uint8 ``[total, data]``, ``sf`` uint8 ``[total, scales]``."""
    layout, runs, total, size = lookup(format), T.dynamic("runs"), T.dynamic("total"), T.dynamic("size")
    data, groups = layout.data_bytes(width), width // layout.group_of(width)

    @T.prim_func
    def load_codes(
        cache: T.Tensor((size,), T.uint8),
        segments: T.Tensor((runs, 4), T.int32),
        codes: T.Tensor((total, data), T.uint8),
        sf: T.Tensor((total, groups), T.uint8),
        page: T.int32,
        stride: T.int64,
    ):
        with T.Kernel(VECTOR_CORES) as core:
            held = T.alloc_shared((data,), T.uint8)
            scales = T.alloc_shared((groups,), T.uint8)
            for run in T.serial(runs):
                for step in T.serial(T.ceildiv(segments[run, 2] - segments[run, 1], VECTOR_CORES)):
                    row = step * VECTOR_CORES + core
                    if row < segments[run, 2] - segments[run, 1] and segments[run, 0] >= 0:
                        entry = segments[run, 1] + row
                        unit = segments[run, 0] + entry // page
                        at = _data(layout, unit, entry % page, page, stride, data, groups)
                        behind = _scales(layout, at, entry % page, page, data, groups)
                        T.copy(cache[at : at + data], held)
                        T.copy(cache[behind : behind + groups], scales)
                        T.copy(held, codes[segments[run, 3] + row, 0:data])
                        T.copy(scales, sf[segments[run, 3] + row, 0:groups])

    return load_codes
