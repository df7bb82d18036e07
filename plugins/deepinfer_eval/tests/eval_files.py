"""Files that tests make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ITEMS = [{"id": f"f{i}", "question": f"def function_{i}(", "answer": i} for i in range(4)]
"""Items that expect a number."""


def write_lines(path: Path, records: list[Any]) -> Path:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path
