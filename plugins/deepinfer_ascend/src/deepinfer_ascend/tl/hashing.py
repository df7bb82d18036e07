"""The hash of draws and its keys (``spec/sampling.md`` 2.4), in arithmetic of 64 bits that wraps around."""

import tilelang.ascend.language as T

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
LOW = 0xFFFFFFFF


def _word(number: int):
    return T.uint64(number)


@T.macro
def mix(z):
    """``z`` uint64 ``[1]``, in place."""
    z[0] = z[0] + _word(_GOLDEN)
    z[0] = (z[0] ^ (z[0] >> _word(30))) * _word(_FIRST)
    z[0] = (z[0] ^ (z[0] >> _word(27))) * _word(_SECOND)
    z[0] = z[0] ^ (z[0] >> _word(31))


@T.macro
def key(z, seed, position, kind):
    """``z`` uint64 ``[1]``: the key of a draw of ``seed`` int64 at ``position`` int64."""
    shift = T.alloc_local((1,), T.uint64)
    z[0] = T.reinterpret(seed, T.uint64)
    shift[0] = T.cast(kind, T.uint64)
    if kind >= 3:
        z[0] = z[0] ^ shift[0]
        mix(z)
        shift[0] = _word(0)
    shift[0] = (_word(3) * T.reinterpret(position, T.uint64) + shift[0]) * _word(_GOLDEN)
    z[0] = z[0] + (shift[0] ^ (shift[0] << _word(13)))
    mix(z)


def portion(z, total):
    """``floor(z * total / 2^64)`` of uint64 ``z`` and int64 ``total`` below 2^32."""
    wide = T.cast(total, T.uint64)
    return T.cast(((z >> _word(32)) * wide + (((z & _word(LOW)) * wide) >> _word(32))) >> _word(32), T.int64)
