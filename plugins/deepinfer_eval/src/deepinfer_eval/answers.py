"""What a file of answers says: a header line that names the run, then a line for each answer, in no order.

::

    {"deepinfer_eval": 1, "dataset": {...}, "samples": 4, "parameters": {...}, "scorer": ..., "run": {...}}
    {"id": "sum-1", "item": 0, "sample": 2, "expected": 5, "text": "...", "finish_reason": "stop", ...}

Lines have what scoring needs, so that the file stands for itself. A last line without its newline is what a killed
process left: it counts as not there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from attrs import field, frozen

from deepinfer_core.bounded_file import MAX_TEXT_BYTES
from deepinfer_core.errors import InvalidInputFile, InvalidParameter
from deepinfer_core.parameters.named_parts import NamedPart
from deepinfer_eval.scorer_names import scorer_of

FORMAT = 1
MARK = "deepinfer_eval"
"""First key of a header; its value is the format."""
REMEDY = "give a file that deepinfer eval generate wrote, and keep its lines whole"


@frozen
class Header:
    """The first line."""

    dataset: Mapping[str, Any]
    """``name``, ``sha256`` and ``items`` (their number)."""
    samples: int
    """Answers to each item."""
    parameters: Mapping[str, Any]
    """What else decides on the answers: those of sampling, the base seed, how a question becomes a prompt."""
    run: Mapping[str, Any]
    """Model, backend, settings and versions: ``deepinfer_core.replay.describe_run``."""
    scorer: Mapping[str, Any] | None = None
    """What ``--scorer`` named, in the form of ``scorer_names.as_record``."""

    @property
    def total(self) -> int:
        """Answers of a whole file."""
        return self.samples * int(self.dataset["items"])

    def as_record(self) -> dict[str, Any]:
        return {
            MARK: FORMAT,
            "dataset": dict(self.dataset),
            "samples": self.samples,
            "parameters": dict(self.parameters),
            "scorer": self.scorer,
            "run": dict(self.run),
        }


@frozen
class Answer:
    """One line."""

    item_id: str
    item: int
    """Place of the item in the data set, from 0."""
    sample: int
    expected: Any
    text: str
    finish_reason: str
    num_tokens: int
    scorer: NamedPart | None = None
    """That of the item, where it has one of its own."""
    emulated: bool = False
    """An emulated backend made it."""

    @property
    def key(self) -> tuple[int, int]:
        return self.item, self.sample


@frozen
class Answers:
    """A whole file as it is now."""

    header: Header | None
    """None: the file is empty, or not even its first line is whole."""
    answers: tuple[Answer, ...] = ()
    whole_bytes: int = 0
    """Length of the lines that are whole."""
    cut_bytes: int = 0
    """Length of the last line, if it is not."""
    done: frozenset[tuple[int, int]] = field(init=False)
    """Item and sample of each answer."""

    @done.default
    def _done(self) -> frozenset[tuple[int, int]]:
        return frozenset(answer.key for answer in self.answers)


def read_answers(path: str) -> Answers:
    """The file at ``path``, which need not be there.

    :raises InvalidInputFile: it cannot be read, or a line is none of such a file (names it).
    """
    try:
        with Path(path).open("rb") as stream:
            return parse_answers(stream, path)
    except FileNotFoundError:
        return Answers(None)
    except OSError as err:
        raise InvalidInputFile(
            f"cannot read the answers {path}",
            reason=err.strerror or str(err),
            remedy="check the path",
            details={"path": path},
        ) from err


def parse_answers(stream: BinaryIO, path: str) -> Answers:
    """As :func:`read_answers`, of an open file."""
    header: Header | None = None
    found: dict[tuple[int, int], Answer] = {}
    lines: dict[tuple[int, int], int] = {}
    whole = cut = 0
    for line, raw in enumerate(_lines(stream, path), 1):
        if not raw.endswith(b"\n"):
            if line == 1 and not _may_begin_header(raw):
                raise _no_answers(path)
            cut = len(raw)
            break
        record = _object(raw, path, line)
        if line == 1:
            header = _header(record, path)
        else:
            answer = _answer(record, header, path, line)
            if answer.key in found:
                raise _wrong(path, line, f"is the same answer as line {lines[answer.key]}")
            found[answer.key] = answer
            lines[answer.key] = line
        whole += len(raw)
    return Answers(header, tuple(found.values()), whole, cut)


def _lines(stream: BinaryIO, path: str) -> Iterator[bytes]:
    """The lines, none longer than an answer can be: a device may have no end, and no newline."""
    for line in count(1):
        raw = stream.readline(MAX_TEXT_BYTES + 1)
        if len(raw) > MAX_TEXT_BYTES:
            raise _no_answers(path) if line == 1 else _wrong(path, line, f"is longer than {MAX_TEXT_BYTES} bytes")
        if not raw:
            return
        yield raw


def _may_begin_header(raw: bytes) -> bool:
    """Whether a first line that is not whole can be what is left of a header: nothing else may be written over."""
    begin = json.dumps({MARK: FORMAT})[:-1].encode()
    return raw.startswith(begin) or begin.startswith(raw)


def _object(raw: bytes, path: str, line: int) -> Mapping[str, Any]:
    try:
        record = json.loads(raw)
    except (ValueError, RecursionError) as err:
        if line == 1:
            raise _no_answers(path) from None
        raise _wrong(path, line, "is not JSON", str(err)) from None
    if not isinstance(record, dict):
        raise _wrong(path, line, f"is {type(record).__name__}, not an object")
    return record


def _header(record: Mapping[str, Any], path: str) -> Header:
    if MARK not in record:
        raise _no_answers(path)
    if record[MARK] != FORMAT:
        raise InvalidInputFile(
            f"{path} has format {record[MARK]!r}",
            reason=f"this release reads format {FORMAT}",
            remedy="use the release that wrote it",
        )
    samples, dataset, parameters, run = (record.get(key) for key in ("samples", "dataset", "parameters", "run"))
    if (
        not isinstance(dataset, Mapping)
        or not isinstance(parameters, Mapping)
        or not isinstance(run, Mapping)
        or not all(isinstance(dataset.get(key), str) for key in ("name", "sha256"))
        or not all(isinstance(run.get(key, {}), Mapping) for key in ("versions", "settings"))
        or not (type(samples) is int and samples > 0)
        or not (type(dataset.get("items")) is int and dataset["items"] > 0)
    ):
        raise _wrong(path, 1, "is a header without dataset, samples, parameters or run")
    return Header(dataset, samples, parameters, run, record.get("scorer"))


def _answer(record: Mapping[str, Any], header: Header | None, path: str, line: int) -> Answer:
    types = {"id": str, "item": int, "sample": int, "text": str, "finish_reason": str, "num_output_tokens": int}
    wrong = [name for name, kind in types.items() if not isinstance(record.get(name), kind)]
    if wrong or "expected" not in record:
        raise _wrong(path, line, f"has no {wrong[0] if wrong else 'expected'}")
    if header is None:
        raise _no_answers(path)
    item, sample = record["item"], record["sample"]
    if not (0 <= item < header.dataset["items"] and 0 <= sample < header.samples):
        what = f"is sample {sample} of item {item}"
        raise _wrong(path, line, what, f"there are {header.samples} of {header.dataset['items']} items")
    try:
        scorer = scorer_of(record.get("scorer"))
    except InvalidParameter as err:
        raise _wrong(path, line, "has a scorer that is none", err.what) from None
    return Answer(
        record["id"],
        item,
        sample,
        record["expected"],
        record["text"],
        record["finish_reason"],
        record["num_output_tokens"],
        scorer,
        emulated=record.get("emulated") is True,
    )


def _no_answers(path: str) -> InvalidInputFile:
    return InvalidInputFile(
        f"{path} is no file of answers",
        reason="its first line is no header of deepinfer eval generate",
        remedy=REMEDY,
        details={"path": path},
    )


def _wrong(path: str, line: int, what: str, reason: str = "") -> InvalidInputFile:
    return InvalidInputFile(
        f"line {line} of {path} {what}", reason=reason, remedy=REMEDY, details={"path": path, "line": line}
    )
