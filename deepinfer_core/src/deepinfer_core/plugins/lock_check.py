"""Apply a plugin lock to what is installed: what differs cannot be used, what is not listed stays off."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.errors import PluginError, PluginLockError
from deepinfer_core.plugins.lock import LockedPlugin, PluginLock, absent, differs
from deepinfer_core.plugins.record import PluginRecord

_OFF = "not in plugins.lock (--plugin-lock)"


def apply_lock(records: Sequence[PluginRecord], lock: PluginLock) -> list[PluginLockError]:
    """Put records into end states by the lock, and return what differs.

    A plugin that came after the lock was written must not break a run, so it is ``disabled``. A locked one that is
    another one now, or gone, is an error, whether or not this run needs it: the lock says what the run is made of.
    """
    problems: list[PluginLockError] = []
    for record in records:
        if record.usable and lock.find(record.key) is None:
            _switch_off(record)
    for locked in lock.plugins:
        named = [record for record in records if record.key == locked.key]
        own = [record for record in named if record.distribution == locked.distribution]
        for record in named if own else ():
            if record.usable and record.distribution != locked.distribution:
                _switch_off(record)
        found = (own or named)[:1]
        if not found:
            problems.append(absent(locked, lock.source))
        elif difference := locked.difference(LockedPlugin.of(found[0])):
            if difference[0] == "manifest" and found[0].state == "invalid":  # there is one, which says nothing
                difference = ("manifest", locked.manifest, f"unusable ({found[0].detail})")
            error = differs(locked, difference, lock.source, in_place=found[0].editable)
            found[0].end("incompatible", "lock", error, error.what.partition(": ")[2])
            if found[0].state != "disabled":
                problems.append(error)
    return problems


def _switch_off(record: PluginRecord) -> None:
    error = PluginError(
        f"{record.title} is disabled", reason=f"it is {_OFF}", remedy="change that setting, or lock it too, to use it"
    )
    record.end("disabled", "lock", error, _OFF)
