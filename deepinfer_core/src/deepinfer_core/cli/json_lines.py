"""A line of JSON lines, as every command writes them."""

from __future__ import annotations

import json


def json_line(record: dict[str, object]) -> bytes:
    """One line of strict JSON in UTF-8. A lone surrogate of a bad prompt stays visible as its escape."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace") + b"\n"
