"""Fields of a decode step's rows from those of its requests (``meta.decode_metadata``; ``spec/kernels.md`` 2.5)."""

import tilelang.ascend.language as T

from deepinfer_ascend.chip import VECTOR_CORES
from deepinfer_ascend.jit.registry import kernel

PLACEHOLDER_QUERY = 998244353
"""Query index of a row that belongs to no request."""


@kernel
def request_rows(*, threads: int = 128):
    """What each row has of its request, all int32: ``seqlens_q``, ``seqlens_k``, ``state_slot``, ``swa_slot`` ``[n]``,
    ``tables`` ``[n, blocks]`` -> ``ends`` ``[n]``, running sums; ``positions``, ``queries``, ``context``, ``states``,
    ``windows``, ``slots`` ``[rows]``, ``spans`` ``[rows, 2]`` of the window, ``row_tables`` ``[rows, blocks]``.

    ``valid`` uint8 ``[rows]``, 0 for a placeholder; ``window`` 0 writes no spans and no slots.
    """
    n, rows, blocks = T.dynamic("n"), T.dynamic("rows"), T.dynamic("blocks")

    @T.prim_func
    def request_rows(
        seqlens_q: T.Tensor((n,), T.int32),
        seqlens_k: T.Tensor((n,), T.int32),
        state_slot: T.Tensor((n,), T.int32),
        swa_slot: T.Tensor((n,), T.int32),
        tables: T.Tensor((n, blocks), T.int32),
        valid: T.Tensor((rows,), T.uint8),
        ends: T.Tensor((n,), T.int32),
        positions: T.Tensor((rows,), T.int32),
        queries: T.Tensor((rows,), T.int32),
        context: T.Tensor((rows,), T.int32),
        states: T.Tensor((rows,), T.int32),
        windows: T.Tensor((rows,), T.int32),
        slots: T.Tensor((rows,), T.int32),
        spans: T.Tensor((rows, 2), T.int32),
        row_tables: T.Tensor((rows, blocks), T.int32),
        window: T.int32,
        ring: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            request = T.alloc_local((1,), T.int32)
            end = T.alloc_local((1,), T.int32)
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES)):
                row = step * VECTOR_CORES + core
                if row < rows:
                    request[0] = 0
                    end[0] = seqlens_q[0]
                    while request[0] < n - 1 and end[0] <= row:
                        request[0] = request[0] + 1
                        end[0] = end[0] + seqlens_q[request[0]]
                    for turn in T.serial(T.ceildiv(blocks, threads)):
                        if turn * threads + lane < blocks:
                            row_tables[row, turn * threads + lane] = tables[request[0], turn * threads + lane]
                    if lane == 0:
                        position = seqlens_k[request[0]] - (end[0] - row)
                        length = T.min(position + 1, window)
                        base = swa_slot[request[0]] * ring
                        positions[row] = position
                        context[row] = position + 1
                        queries[row] = T.if_then_else(valid[row] == T.uint8(0), PLACEHOLDER_QUERY, request[0])
                        states[row] = state_slot[request[0]]
                        windows[row] = swa_slot[request[0]]
                        if window > 0:
                            spans[row, 0] = base + (position + 1 - length) % ring
                            spans[row, 1] = length
                            slots[row] = T.if_then_else(valid[row] == T.uint8(0), -1, base + position % ring)
            if core == 0 and lane == 0:
                end[0] = 0
                for i in T.serial(n):
                    end[0] = end[0] + seqlens_q[i]
                    ends[i] = end[0]

    return request_rows


@kernel
def ratio_rows(*, ratio: int, threads: int = 128):
    """What rows complete and see of entries of ``ratio`` tokens: ``positions``, ``valid``, ``row_tables`` as above ->
    ``done`` (position of the completed entry, 0: none), ``slots`` (-1: none), ``seen`` ``[rows]``, and ``runs``
    ``[rows, 2]``: where a row begins among all entries of the tables, and what it sees."""
    rows, blocks = T.dynamic("rows"), T.dynamic("blocks")

    @T.prim_func
    def ratio_rows(
        positions: T.Tensor((rows,), T.int32),
        valid: T.Tensor((rows,), T.uint8),
        row_tables: T.Tensor((rows, blocks), T.int32),
        done: T.Tensor((rows,), T.int32),
        slots: T.Tensor((rows,), T.int32),
        seen: T.Tensor((rows,), T.int32),
        runs: T.Tensor((rows, 2), T.int32),
        per_block: T.int32,
    ):
        with T.Kernel(VECTOR_CORES) as core, T.SimtVF(threads=threads):
            lane = T.get_thread_binding()
            for step in T.serial(T.ceildiv(rows, VECTOR_CORES * threads)):
                row = (step * VECTOR_CORES + core) * threads + lane
                if row < rows:
                    entry = positions[row] // ratio
                    if (positions[row] + 1) % ratio == 0 and valid[row] != T.uint8(0):
                        done[row] = entry * ratio
                        slots[row] = row_tables[row, entry // per_block] * per_block + entry % per_block
                    else:
                        done[row] = 0
                        slots[row] = -1
                    seen[row] = (positions[row] + 1) // ratio
                    runs[row, 0] = row * blocks * per_block
                    runs[row, 1] = (positions[row] + 1) // ratio

    return ratio_rows
