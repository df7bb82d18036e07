"""One entry of a file of baselines, and the file: what is in it, how it is read, and what is wrong with it.

::

    {"version": 1, "entries": {"PLATFORM/WORKLOAD": {
       "platform": {...}, "workload": {...}, "model": "blake2b:...",
       "samples": [{"id", "ppl_hex", "sum_logprob_hex", "tokens_sha256", "drafts": {...}, "logprobs_hex"}],
       "created": "2026-01-31", "reason": "..."}}}

Numbers are hexadecimal floats, as C99 writes them: decimals would hide a difference of the last bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from attrs import field, frozen

from deepinfer_core.errors import BaselineError

VERSION = 1
Value = TypeVar("Value")


@frozen
class SampleResult:
    """One sample as it was computed."""

    id: str
    tokens_sha256: str
    logprobs: tuple[float, ...] = field(repr=False)
    """Of each forced token that a decode step computed, FP32 values."""
    sum_logprob: float
    ppl: float
    verified: tuple[int, ...] = ()
    """Of each place in a block of drafts, how many were verified."""
    accepted: tuple[int, ...] = ()

    @classmethod
    def of(cls, id: str, tokens_sha256: str, logprobs: Iterable[float], **drafts: tuple[int, ...]) -> SampleResult:
        """With the sum, which is rounded once, and the perplexity."""
        values = tuple(logprobs)
        total = math.fsum(values)
        return cls(id, tokens_sha256, values, total, perplexity_of(total, len(values)), **drafts)

    def as_record(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "ppl_hex": self.ppl.hex(),
            "sum_logprob_hex": self.sum_logprob.hex(),
            "tokens_sha256": self.tokens_sha256,
            "drafts": {"verified": list(self.verified), "accepted": list(self.accepted)},
            "logprobs_hex": " ".join(map(short_hex, self.logprobs)),
        }


@frozen
class Entry:
    """What one machine computed for one workload."""

    key: str
    platform: Mapping[str, Any]
    workload: Mapping[str, Any]
    model: str
    """Fingerprint of the checkpoint."""
    samples: tuple[SampleResult, ...]
    created: str
    reason: str = ""

    @property
    def backend(self) -> str:
        return str(self.platform.get("backend"))

    @property
    def perplexity(self) -> float:
        """Over all tokens of all samples."""
        count = sum(len(sample.logprobs) for sample in self.samples)
        return perplexity_of(math.fsum(sample.sum_logprob for sample in self.samples), count)

    def same_values(self, other: Entry) -> bool:
        """Whether both have the same workload, checkpoint and bits."""
        return (self.workload, self.model, self.samples) == (other.workload, other.model, other.samples)

    def as_record(self) -> dict[str, Any]:
        return {
            "platform": dict(self.platform),
            "workload": dict(self.workload),
            "model": self.model,
            "samples": [sample.as_record() for sample in self.samples],
            "created": self.created,
            "reason": self.reason,
        }


def perplexity_of(sum_logprob: float, count: int) -> float:
    """Of ``count`` tokens. Finite also where the model excludes them: at most ``exp(700)``, near the end of FP64."""
    return math.exp(min(-sum_logprob / count, 700.0))


def short_hex(value: float) -> str:
    """``float.hex`` without the zeros at the end, which an FP32 value has many of."""
    mantissa, _, exponent = value.hex().partition("p")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"


def text_of(entries: Mapping[str, Entry]) -> str:
    """The file, entries in the order of their keys."""
    table = {key: entries[key].as_record() for key in sorted(entries)}
    return json.dumps({"version": VERSION, "entries": table}, indent=1) + "\n"


def parse(path: Path, text: str) -> dict[str, Entry]:
    """The entries by key. Raises BaselineError, which names the place."""
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as err:
        raise _damaged(path, "it is no JSON", str(err)) from err
    if not isinstance(data, dict) or not isinstance(data.get("entries"), dict):
        raise _damaged(path, "it has no table of entries")
    if data.get("version") != VERSION:
        raise BaselineError(
            f"{path} is of version {data.get('version')!r}",
            reason=f"this release reads and writes version {VERSION} of a file of baselines",
            remedy="use the release that wrote it, or give another file to --baseline and make it with --update",
            details={"path": str(path), "version": data.get("version"), "supported": VERSION},
        )
    return {key: _entry(_Place(path, key), key, raw) for key, raw in data["entries"].items()}


@frozen
class _Place:
    """Where in a file something is read, for the message about it."""

    path: Path
    name: str

    def at(self, name: str) -> _Place:
        return _Place(self.path, f"{self.name}: {name}")

    def take(self, raw: Any, key: str, read: Callable[[Any], Value]) -> Value:
        """``raw[key]`` through ``read``, which raises what Python raises for a wrong type."""
        if not isinstance(raw, dict) or key not in raw:
            raise _damaged(self.path, f"{self.name}: no {key}")
        try:
            return read(raw[key])
        except (TypeError, ValueError, AttributeError, OverflowError) as err:
            raise _damaged(self.path, f"{self.name}: {key} is {str(raw[key])[:40]!r}", str(err)) from err


def _entry(place: _Place, key: str, raw: Any) -> Entry:
    samples = place.take(raw, "samples", _list)
    if not samples:
        raise _damaged(place.path, f"{place.name}: no samples")
    return Entry(
        key=key,
        platform=place.take(raw, "platform", _table),
        workload=place.take(raw, "workload", _table),
        model=place.take(raw, "model", _text),
        samples=tuple(_sample(place.at(f"sample {at}"), item) for at, item in enumerate(samples)),
        created=place.take(raw, "created", _text),
        reason=place.take(raw, "reason", _text),
    )


def _sample(place: _Place, raw: Any) -> SampleResult:
    drafts = place.take(raw, "drafts", _table)
    return SampleResult(
        id=place.take(raw, "id", _text),
        tokens_sha256=place.take(raw, "tokens_sha256", _text),
        logprobs=place.take(raw, "logprobs_hex", lambda text: tuple(map(_number, text.split()))),
        sum_logprob=place.take(raw, "sum_logprob_hex", _number),
        ppl=place.take(raw, "ppl_hex", _number),
        verified=place.at("drafts").take(drafts, "verified", _counts),
        accepted=place.at("drafts").take(drafts, "accepted", _counts),
    )


def _number(text: Any) -> float:
    value = float.fromhex(text)
    if not math.isfinite(value):
        raise ValueError("not a finite number")
    return value


def _counts(value: Any) -> tuple[int, ...]:
    if not all(type(item) is int and item >= 0 for item in _list(value)):
        raise TypeError("not a list of counts")
    return tuple(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("not a text")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("not a list")
    return value


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a table")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands in one table twice")
    return table


def _damaged(path: Path, what: str, reason: str = "") -> BaselineError:
    return BaselineError(
        f"{path} is no file of baselines: {what}",
        reason=reason or "it was damaged, or written by something else",
        remedy="restore it from version control, or move it away and make a new one with --update",
        details={"path": str(path)},
    )
