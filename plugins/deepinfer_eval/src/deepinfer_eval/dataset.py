"""A data set: items of a JSON-lines file, checked as a whole before anything is generated.

A line that is no item is not left out: the score would then be that of another set. All such lines are named at once.
"""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import frozen

from deepinfer_core.bounded_file import MAX_RECORDS_BYTES, read_bounded
from deepinfer_core.errors import InvalidInputFile, InvalidParameter
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_eval.scorer_names import scorer_of

EXAMPLE = '{"id": "sum-1", "question": "What is 2 + 3?", "answer": 5}'
SHOWN = 5
"""Problems that a message lists."""


@frozen
class Item:
    """One question. ``expected`` is what its line has as ``answer``, any value of JSON."""

    item_id: str
    question: str
    expected: Any
    line: int
    scorer: NamedPart | None = None
    """Its own scorer, in place of the one of the run."""


@frozen
class Dataset:
    """All items, in the order of the file."""

    name: str
    sha256: str
    """Of the bytes of the file."""
    items: tuple[Item, ...]

    def as_record(self) -> dict[str, Any]:
        return {"name": self.name, "sha256": self.sha256, "items": len(self.items)}


def read_dataset(path: str) -> Dataset:
    """Empty lines are left out, and so are keys that are not read here.

    :raises InvalidInputFile: the file cannot be read, has no item, or lines that are none; names them.
    """
    try:
        data = read_bounded(path, MAX_RECORDS_BYTES)
    except OSError as err:
        raise InvalidInputFile(
            f"cannot read the data set {path}",
            reason=err.strerror or str(err),
            remedy="check the path",
            details={"path": path},
        ) from err
    items: list[Item] = []
    problems: list[tuple[int, str]] = []
    seen: dict[str, int] = {}
    for line, raw in enumerate(data.removeprefix(BOM_UTF8).split(b"\n"), 1):
        if not raw.strip():
            continue
        try:
            item = _item(raw, line)
        except ValueError as err:
            problems.append((line, str(err)))
            continue
        if item.item_id in seen:
            problems.append((line, f"id {item.item_id!r} is that of line {seen[item.item_id]}"))
        seen.setdefault(item.item_id, line)
        items.append(item)
    if problems or not items:
        raise _no_dataset(path, problems)
    return Dataset(Path(path).name, hashlib.sha256(data).hexdigest(), tuple(items))


def _item(raw: bytes, line: int) -> Item:
    """Raises ValueError with what is wrong."""
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as err:
        raise ValueError(f"it is not UTF-8 (byte {err.start})") from None
    except (ValueError, RecursionError) as err:
        raise ValueError(f"it is not JSON: {err}") from None
    if not isinstance(record, Mapping):
        raise ValueError(f"it is {'null' if record is None else type(record).__name__}, not an object")
    for key in ("question", "answer"):
        if key not in record:
            raise ValueError(f"{key} is missing")
    question, item_id = record["question"], record.get("id", line)
    if not isinstance(question, str) or not question.strip():
        raise ValueError(f"question is {question!r:.60}, not a text")
    if isinstance(item_id, bool) or not isinstance(item_id, str | int):
        raise ValueError(f"id is {item_id!r:.60}, not a text or an integer")
    try:
        json.dumps(record["answer"], allow_nan=False)  # as the file of answers will have it
    except ValueError:
        raise ValueError("answer has NaN, or a number beyond all that JSON can say") from None
    try:
        scorer = scorer_of(record.get("scorer"))
    except InvalidParameter as err:
        raise ValueError(err.what) from None
    return Item(str(item_id), question, record["answer"], line, scorer)


def _no_dataset(path: str, problems: list[tuple[int, str]]) -> InvalidInputFile:
    if not problems:
        return InvalidInputFile(f"{path} has no items", remedy=f"write one JSON object per line, such as {EXAMPLE}")
    count = len(problems)
    listed = "; ".join(f"line {line}: {what}" for line, what in problems[:SHOWN])
    return InvalidInputFile(
        f"{path} has {'a line' if count == 1 else f'{count} lines'} that {'is' if count == 1 else 'are'} no item",
        reason=listed + (f"; and {count - SHOWN} more" if count > SHOWN else ""),
        remedy=f"write one JSON object per line, such as {EXAMPLE}",
        details={"path": path, "lines": [line for line, _ in problems]},
    )
