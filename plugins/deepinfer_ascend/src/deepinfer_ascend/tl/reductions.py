"""What threads of a region find out together."""

import tilelang.ascend.language as T


@T.macro
def add_up(part, own, lane, threads: int, count: int):
    """The first ``count`` values of ``own`` int64, summed over ``threads`` (a power of two): sum j in
    ``part[j * threads]``, which all threads may read, and none may write before the next barrier."""
    for j in T.serial(count):
        part[j * threads + lane] = own[j]
    T.sync_threads()
    for level in T.unroll(threads.bit_length() - 1):
        half = threads >> (level + 1)
        if lane < half:
            for j in T.serial(count):
                part[j * threads + lane] = part[j * threads + lane] + part[j * threads + lane + half]
        T.sync_threads()
