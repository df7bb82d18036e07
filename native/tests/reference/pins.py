"""External pins (``spec/engine.md`` 3.6, 4.2): references of somebody outside, given back by a handle."""

from __future__ import annotations

from reference.records import POOL_INDEX, POOL_MAIN, POOL_STATE, POOL_SWA, Refused

NAMES = {POOL_MAIN: "main", POOL_INDEX: "main", POOL_SWA: "swa", POOL_STATE: "state"}


def pin(m, pool: int, units: list[int]) -> int:
    """Hold units that live requests have; returns a number that `unpin` takes once."""
    if pool not in NAMES:
        raise Refused("argument", f"pool {pool} has no units to pin")
    held = getattr(m, NAMES[pool])
    if any(unit not in held.ref for unit in units):
        raise Refused("argument", "a unit that nobody holds")
    for unit in units:
        held.share(unit)
    m.next_pin += 1
    m.pins[m.next_pin] = (NAMES[pool], list(units))
    return m.next_pin


def unpin(m, number: int) -> bool:
    """The newest launched step may have used the units for all that anybody knows."""
    if number not in m.pins:
        raise Refused("stale", f"pin {number}")
    name, units = m.pins.pop(number)
    for unit in units:
        getattr(m, name).release(unit, m.launched)
    return True
