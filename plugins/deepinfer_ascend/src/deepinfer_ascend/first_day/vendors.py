"""Each symbol of ``vendor/table.py``: whether its library is here, and whether it is called as our equivalent is.

A symbol whose signature cannot be told, as those of compiled code, counts as found. ``--emulate`` looks at the
equivalents alone.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from typing import Any

from attrs import asdict, frozen

from deepinfer_ascend import emulation
from deepinfer_ascend.vendor.loading import resolve
from deepinfer_ascend.vendor.table import TABLE, UNBOUND
from deepinfer_core.errors import VendorImportError


@frozen
class Found:
    """:ivar state: ``found``, ``differs``, ``missing``, or ``unbound``: no op calls it. :ivar file: where it is.
    :ivar signature: the library's. :ivar detail: what differs, why it is missing, or why no op calls it."""

    symbol: str
    state: str
    ops: tuple[str, ...]
    file: str = ""
    signature: str = ""
    detail: str = ""


def look_up(name: str) -> Found:
    """The symbol ``name`` of the table, in the library that is installed."""
    symbol = TABLE[name]
    try:
        theirs = resolve(symbol)
    except VendorImportError as exc:
        return Found(name, "missing", symbol.ops, detail=f"{exc.what}: {exc.reason}")
    file = getattr(sys.modules[symbol.module], "__file__", None) or ""
    signature, detail = compared(theirs, emulation._found(name))
    return Found(name, "differs" if detail else "found", symbol.ops, file, signature, detail)


def compared(theirs: Callable[..., Any], ours: Callable[..., Any]) -> tuple[str, str]:
    """The library's signature, and in what it does not take a call as ours does: too few arguments by place, or no
    option of a name."""
    try:
        found = inspect.signature(theirs)
    except (TypeError, ValueError):
        return "not told", ""
    parameters = found.parameters.values()
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return str(found), ""  # a wrapper that takes whatever comes
    mine = inspect.signature(ours).parameters.values()
    by_place = [p.name for p in mine if p.default is p.empty]
    places = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
    lacking = [p.name for p in mine if p.default is not p.empty and p.name not in found.parameters]
    short = f"{places} arguments by place, {len(by_place)} are passed: {', '.join(by_place)}"
    parts = (short if places < len(by_place) else "", f"no option {', '.join(lacking)}" if lacking else "")
    return str(found), "; ".join(filter(None, parts))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--emulate", action="store_true")
    options = parser.parse_args()
    if options.emulate:
        ours = {name: str(inspect.signature(emulation._found(name))) for name in TABLE}
        found = [Found(name, "found", TABLE[name].ops, "emulation", text) for name, text in ours.items()]
    else:
        found = [look_up(name) for name in TABLE]
    found += [Found(name, "unbound", (), detail=why) for name, why in UNBOUND.items()]
    sys.stdout.write(json.dumps([asdict(item) for item in found], indent=1) + "\n")
    return int(any(item.state in ("differs", "missing") for item in found))


if __name__ == "__main__":
    raise SystemExit(main())
