"""Ranks of a group compare their plugins before the first step: one that runs another release would answer otherwise.

Each rank is a process of its own, perhaps on another host and in another environment. An engine that runs alone is one
process, and has nobody to compare with; its child processes get what they load from it, and compare that
(:func:`deepinfer_core.plugins.lock.check_installed`).
"""

from __future__ import annotations

import hashlib
import json

from deepinfer_core.errors import PluginLockError
from deepinfer_core.plugins.lock import LockedPlugin, PluginLock
from deepinfer_core.step_choice import DpReducer

_DIGEST_INTS = 8
_BYTES_PER_INT = 7  # of a signed 64-bit integer, so that none is negative


def agree_on_plugins(reducer: DpReducer, lock: PluginLock) -> None:
    """Return if every rank has these plugins in this order; otherwise raise the same error on every rank.

    Every rank of the group calls it at the same place. Where they differ, all of them learn of it by the same reduce,
    so none waits for one that has left.

    :raises PluginLockError: names the plugin, the field, and both values with their ranks.
    :raises GroupError: a rank is gone, or late.
    """
    text = lock.as_text().encode("utf-8")
    digest = hashlib.sha256(text).digest()
    parts = [int.from_bytes(digest[4 * i : 4 * i + 4], "big") for i in range(_DIGEST_INTS)]
    seen = [int(value) for value in reducer.start_max([*parts, *(-part for part in parts), len(text)]).wait()]
    if seen[:_DIGEST_INTS] == [-value for value in seen[_DIGEST_INTS : 2 * _DIGEST_INTS]]:
        return
    locks = _gather(reducer, text, seen[-1])
    for rank, other in enumerate(locks):
        if other != locks[0]:
            raise _disagree(rank, locks[0], other)
    raise PluginLockError(  # equal texts have equal digests
        "the ranks of the group have other plugins",
        reason="what they say of them is the same, its digests are not",
        remedy="start all ranks from the same installation",
    )


def _gather(reducer: DpReducer, text: bytes, longest: int) -> list[PluginLock]:
    """The lock of every rank: each fills its own slot, and the largest of a value and zeros is the value."""
    slot = -(-longest // _BYTES_PER_INT)
    padded = text.ljust(slot * _BYTES_PER_INT)
    own = [int.from_bytes(padded[i : i + _BYTES_PER_INT], "big") for i in range(0, len(padded), _BYTES_PER_INT)]
    values = [0] * (slot * reducer.size)
    values[reducer.rank * slot : (reducer.rank + 1) * slot] = own
    seen = [int(value) for value in reducer.start_max(values).wait()]
    texts = [
        b"".join(value.to_bytes(_BYTES_PER_INT, "big") for value in seen[rank * slot : (rank + 1) * slot])
        for rank in range(reducer.size)
    ]
    return [PluginLock(tuple(LockedPlugin(**item) for item in json.loads(one)["plugins"])) for one in texts]


def _disagree(rank: int, first: PluginLock, other: PluginLock) -> PluginLockError:
    what = f"the plugins of rank {rank} are not those of rank 0"
    details: dict[str, object] = {"rank": rank}
    keys, others = [plugin.key for plugin in first.plugins], [plugin.key for plugin in other.plugins]
    reason = f"rank 0 loads {', '.join(keys) or 'none'}; rank {rank} loads {', '.join(others) or 'none'}"
    if keys == others:
        for one, two in zip(first.plugins, other.plugins, strict=True):
            if difference := one.difference(two):
                name, value, its = difference
                reason = f"{one.kind} {one.name}: {name} is {value} at rank 0, and {its} at rank {rank}"
                details |= {"plugin": one.key, "field": name, "values": [value, its]}
                break
    return PluginLockError(
        what, reason=reason, remedy="install the same releases in every rank's environment", details=details
    )
