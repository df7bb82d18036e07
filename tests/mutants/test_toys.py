"""Toys of every kind pass the conformance kit: it asks of nobody what only the first-party plugins do."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
LEAST = {"model": 60, "sampler": 15, "logits_filter": 12, "grammar": 80, "scorer": 18, "extension": 10}
"""Tests that run on each at level full; fewer would mean that they are skipped."""


def test_toys_of_every_kind_pass_at_level_full() -> None:
    result = subprocess.run(
        [sys.executable, str(HERE / "run_toys.py")], capture_output=True, text=True, timeout=110, check=False
    )
    assert result.stdout, result.stderr[-3000:]
    answer = json.loads(result.stdout)
    failures = {kind: each["failures"] for kind, each in answer.items() if each["failures"]}
    assert not failures, json.dumps(failures, indent=1)
    few = {kind: each for kind, each in answer.items() if each["ran"] < LEAST[kind]}
    assert not few, json.dumps(few, indent=1)
