"""Data sets and headers that the tests share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from deepinfer_eval.answers import Header

sys.path.insert(0, str(Path(__file__).parent))  # the helpers beside the tests, whichever import mode pytest runs in

from eval_files import ITEMS, write_lines


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """Four items that expect a number."""
    return write_lines(tmp_path / "items.jsonl", ITEMS)


@pytest.fixture
def header() -> Header:
    """Of two samples of three items."""
    return Header(
        dataset={"name": "d.jsonl", "sha256": "0" * 64, "items": 3},
        samples=2,
        parameters={"max_tokens": 8, "seed": 0},
        run={"format": 1, "fingerprint": "blake2b:1", "settings": {}, "versions": {}},
        scorer={"name": "numeric", "params": {}},
    )


@pytest.fixture
def answer_record() -> Any:
    """Makes the line of an answer."""

    def make(item: int, sample: int, text: str = "1", **others: Any) -> dict[str, Any]:
        return {
            "id": f"i{item}",
            "item": item,
            "sample": sample,
            "expected": 1,
            "text": text,
            "finish_reason": "stop",
            "num_output_tokens": 3,
            **others,
        }

    return make
