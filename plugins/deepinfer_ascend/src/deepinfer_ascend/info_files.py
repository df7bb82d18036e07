"""The text files that say what is installed: ``key=value``, one a line, as the vendor's installers write them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path


def read_info(path: Path) -> Mapping[str, str]:
    """Keys in lower case -> values without quotes and brackets around them; empty where there is no such file."""
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return {}
    pairs = (line.partition("=") for line in text.splitlines())
    return {key.strip().lower(): value.strip().strip("[]\"'") for key, sign, value in pairs if sign}


def release(version: str) -> tuple[int, ...]:
    """``(8, 2)`` of ``8.2.RC1``: leading numbers, for comparisons; empty where a text begins with none."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, numbers[0].split("."))) if numbers else ()
