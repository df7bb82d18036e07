"""One thing that an examination found."""

from __future__ import annotations

from typing import Literal

from attrs import frozen

Status = Literal["ok", "warning", "problem"]


@frozen
class Note:
    """``problem``: the plugin will be refused, or will fail. ``warning``: it works here and now, or cannot be told."""

    status: Status
    check: str
    detail: str
    remedy: str = ""
