"""Makes the toys of ``toys/conformance_toys`` installed plugins, for this process: a distribution in a folder."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
ENTRIES = {
    "manifest": "conformance-toys = conformance_toys:deepinfer.toml",
    "backends": "toy = conformance_toys.parts",
    "models": "toylm = conformance_toys.parts",
    "samplers": "toy_min_p = conformance_toys.parts",
    "logits_filters": "toy_ban = conformance_toys.parts",
    "grammars": "toy_regex = conformance_toys.parts",
    "scorers": "toy_length = conformance_toys.parts",
    "extensions": "toy_extension = conformance_toys.extension",
}


def install() -> None:
    """Put the toys, and the toy engine parts that they are made of, on the import path."""
    site = Path(tempfile.mkdtemp(prefix="conformance-toys-"))
    info = site / "conformance_toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: conformance-toys\nVersion: 1.0\n", encoding="utf-8")
    text = "".join(f"[deepinfer.{group}]\n{line}\n" for group, line in ENTRIES.items())
    (info / "entry_points.txt").write_text(text, encoding="utf-8")
    parts = HERE.parents[1] / "deepinfer_core" / "tests"
    sys.path[:0] = [str(site), str(HERE / "toys"), str(parts)]
