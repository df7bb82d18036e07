"""Read a file of results: every line is checked before anything is run again."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen

from deepinfer_core.bounded_file import MAX_RECORDS_BYTES, read_bounded
from deepinfer_core.errors import DeepInferError, InvalidInputFile
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.parameters.values import INT32_MAX
from deepinfer_core.replay.run import FORMAT

REMEDY = "write results with deepinfer generate --out FILE, and keep the lines whole"


COUNTED = ("verified", "accepted")


MOST_MASS = 1.001
"""Of a ``sum_smaller``: the range of the contract (SamplerOutput), which leaves room for rounding."""


@frozen
class RecordedAnswer:
    """One answer of a line. ``logprobs`` has one number for each token, where they were recorded."""

    token_ids: tuple[int, ...]
    finish_reason: str
    finish_detail: str
    logprobs: tuple[float, ...] | None = None
    sum_smaller: tuple[float, ...] | None = None
    """The audit statistic of each token, where it was recorded."""
    verified_drafts: tuple[int, ...] = ()
    """Of each place in a block of drafts, how many were verified; empty without drafts."""
    accepted_drafts: tuple[int, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it ended by itself; of another one only the tokens that it has can be compared."""
        return self.finish_reason in ("stop", "length", "tool_calls")


@frozen
class RecordedRequest:
    """One line that can be repeated."""

    line: int
    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    answers: tuple[RecordedAnswer, ...]
    stops_between: tuple[int | None, int | None] = (None, None)


@frozen
class Results:
    """A file of results of one run."""

    run: Mapping[str, Any]
    requests: tuple[RecordedRequest, ...]
    skipped: tuple[int, ...]
    """Lines that have nothing to repeat: they failed before the first token."""


def read_results(path: str) -> Results:
    """Raises InvalidInputFile that names the line: a file cut short, no result, results of several runs."""
    try:
        data = read_bounded(path, MAX_RECORDS_BYTES)
    except OSError as err:
        raise InvalidInputFile(
            f"cannot read the results {path}", reason=err.strerror or str(err), remedy="check the path"
        ) from err
    run: Mapping[str, Any] | None = None
    first = 0
    requests: list[RecordedRequest] = []
    skipped: list[int] = []
    # Editors and other systems add such marks and empty lines, which say nothing.
    for line, raw in enumerate(data.removeprefix(BOM_UTF8).splitlines(), 1):
        if not raw.strip():
            continue
        record = _object(raw, line)
        found = record.get("run")
        if not isinstance(found, Mapping):
            raise _wrong(line, "has no run", "it is no line that deepinfer generate --out writes")
        if found.get("format") != FORMAT:
            raise _wrong(line, f"has a run of format {found.get('format')!r}", f"this release reads format {FORMAT}")
        if not all(isinstance(found.get(table), Mapping) for table in ("settings", "versions")):
            raise _wrong(line, "has a run without settings or versions", "")
        if run is None:
            run, first = found, line
        elif found != run:
            raise _wrong(line, f"is of another run than line {first}", "a replay repeats one run", "split the file")
        request = _request(record, line)
        if request is None:
            skipped.append(line)
        else:
            requests.append(request)
    if run is None or not requests:
        raise InvalidInputFile(f"{path} has no answer that could be repeated", remedy=REMEDY)
    return Results(run, tuple(requests), tuple(skipped))


def refuse_foreign_ids(results: Results, vocab_size: int) -> None:
    """Raises InvalidInputFile naming the first line with a token that the model does not have."""
    for request in results.requests:
        for token in (*request.prompt_token_ids, *(token for answer in request.answers for token in answer.token_ids)):
            if token >= vocab_size:
                raise _wrong(request.line, f"has token {token}", f"the model has ids 0 to {vocab_size - 1}")


def _object(raw: bytes, line: int) -> Mapping[str, Any]:
    try:
        record = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as err:
        raise _wrong(line, "is not JSON", str(err)) from None
    if not isinstance(record, dict):
        raise _wrong(line, f"is {type(record).__name__}, not an object", "")
    return record


def _request(record: Mapping[str, Any], line: int) -> RecordedRequest | None:
    listed = record.get("outputs", record.get("choices", [record]))
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed) or not listed:
        raise _wrong(line, "has outputs that are no list of answers", "")
    answers = tuple(_answer(item, line) for item in listed)
    if not any(answer.token_ids for answer in answers):
        return None
    given = record.get("params")
    if not isinstance(given, Mapping):
        raise _wrong(line, "has no params", "")
    try:
        params = SamplingParams().updated(given)
    except DeepInferError as err:
        raise _wrong(line, "has params that are none", err.what) from None
    if params.n != len(answers) or params.seed is None:
        raise _wrong(line, f"has {len(answers)} answers, n of {params.n} and seed {params.seed}", "")
    between = record.get("stops_between", [None, None])
    if not isinstance(between, list) or len(between) != 2:
        raise _wrong(line, "has stops_between that is no pair", "")
    opening, closing = (None if item is None else _ids([item], "stops_between", line)[0] for item in between)
    prompt = _ids(record.get("prompt_token_ids"), "prompt_token_ids", line)
    longest = max(len(answer.token_ids) for answer in answers)
    if not prompt or longest > params.max_tokens:
        detail = f"{longest} tokens of an answer, of at most {params.max_tokens}"
        raise _wrong(line, f"has a prompt of {len(prompt)} tokens and {detail}", "")
    return RecordedRequest(line, str(record.get("id")), prompt, params, answers, (opening, closing))


def _answer(record: Mapping[str, Any], line: int) -> RecordedAnswer:
    tokens = _ids(record.get("token_ids"), "token_ids", line)
    reason, detail = record.get("finish_reason"), record.get("finish_detail")
    if not isinstance(reason, str) or not isinstance(detail, str):
        raise _wrong(line, "has no finish_reason", "")
    logprobs = smaller = None
    if "logprobs" in record:
        items = record["logprobs"]
        if not isinstance(items, list) or len(items) != len(tokens):
            raise _wrong(line, "has logprobs that do not fit its tokens", "")
        try:
            logprobs = tuple(float(item["logprob"]) for item in items)
            if items and all("sum_smaller" in item for item in items):
                smaller = tuple(float(item["sum_smaller"]) for item in items)
        except (TypeError, KeyError, ValueError, OverflowError):
            raise _wrong(line, "has logprobs that are none", "") from None
        if not all(map(math.isfinite, (*logprobs, *(smaller or ())))):
            raise _wrong(line, "has logprobs that are not finite", "")
        if any(value > 0 for value in logprobs):
            raise _wrong(line, "has a logprob above 0", "")
        if any(not 0 <= value <= MOST_MASS for value in smaller or ()):
            raise _wrong(line, f"has a sum_smaller outside 0 to {MOST_MASS}", "")
    verified, accepted = (_ids(record.get(f"{name}_drafts", []), f"{name}_drafts", line) for name in COUNTED)
    if len(verified) != len(accepted):
        raise _wrong(line, "has verified_drafts and accepted_drafts of different lengths", "")
    return RecordedAnswer(tokens, reason, detail, logprobs, smaller, verified, accepted)


def _ids(value: object, name: str, line: int) -> tuple[int, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise _wrong(line, f"has no {name}", "")
    for item in value:
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= INT32_MAX:
            raise _wrong(line, f"has {item!r:.80} among its {name}", f"token ids are integers from 0 to {INT32_MAX}")
    return tuple(value)


def _wrong(line: int, what: str, reason: str, remedy: str = REMEDY) -> InvalidInputFile:
    return InvalidInputFile(f"line {line} {what}", reason=reason, remedy=remedy, details={"line": line})
