"""A repeated answer beside the recorded one, token by token."""

from __future__ import annotations

from attrs import field, frozen

from deepinfer_core.replay.recorded import RecordedAnswer, RecordedRequest
from deepinfer_core.requests.outputs import Completion
from deepinfer_core.text.tokenizer import Tokenizer


@frozen
class Difference:
    """Where an answer first differs.

    ``position`` counts its tokens from 0; -1: they are equal, and how it ended differs. A token is None where that
    answer had ended. The log-probabilities are those of each answer's own token.
    """

    line: int
    request_id: str
    sample: int
    position: int
    recorded: int | None = None
    now: int | None = None
    recorded_logprob: float | None = None
    now_logprob: float | None = None
    note: str = field(default="")
    """How it ended, if that is the difference or explains it."""

    def as_record(self) -> dict[str, object]:
        return {
            "line": self.line,
            "id": self.request_id,
            "sample": self.sample,
            "position": self.position,
            "recorded_token": self.recorded,
            "token": self.now,
            "recorded_logprob": self.recorded_logprob,
            "logprob": self.now_logprob,
            "note": self.note,
        }

    def text(self, tokenizer: Tokenizer) -> str:
        """One line for a person."""
        where = f"line {self.line} (id {self.request_id}), sample {self.sample + 1}"
        if self.position < 0:
            return f"{where}: the same tokens, but {self.note}"
        shown = " now, ".join((_shown(self.now, self.now_logprob, tokenizer), ""))
        shown += f"{_shown(self.recorded, self.recorded_logprob, tokenizer)} recorded"
        return f"{where}, token {self.position + 1}: {shown}" + (f"; {self.note}" if self.note else "")


def _shown(token: int | None, logprob: float | None, tokenizer: Tokenizer) -> str:
    if token is None:
        return "no token"
    text = f"{token} {tokenizer.spelling(token).decode('utf-8', 'replace')!r}"
    return text if logprob is None else f"{text} (log-probability {logprob:.6g})"


def compare(recorded: RecordedRequest, completions: tuple[Completion, ...]) -> list[Difference]:
    """One difference for each answer that differs."""
    found = (
        _compare(recorded, sample, answer, completion)
        for sample, (answer, completion) in enumerate(zip(recorded.answers, completions, strict=True))
    )
    return [difference for difference in found if difference is not None]


def _compare(
    recorded: RecordedRequest, sample: int, answer: RecordedAnswer, completion: Completion
) -> Difference | None:
    before, after = answer.token_ids, completion.token_ids
    if not answer.is_whole:
        after = after[: len(before)]  # it was cut by something that need not happen again
    note = "" if completion.error is None else f"now it failed: {completion.error.what}"
    shared = min(len(before), len(after))
    position = next((i for i in range(shared) if before[i] != after[i]), shared)
    if position < max(len(before), len(after)):
        logprobs = completion.logprobs
        return Difference(
            recorded.line,
            recorded.request_id,
            sample,
            position,
            before[position] if position < len(before) else None,
            after[position] if position < len(after) else None,
            answer.logprobs[position] if answer.logprobs is not None and position < len(before) else None,
            logprobs[position].logprob if logprobs is not None and position < len(after) else None,
            note,
        )
    ended = (answer.finish_reason.replace("tool_calls", "stop"), answer.finish_detail)
    now = (completion.finish_reason, str(completion.finish_detail))
    if answer.is_whole and ended != now:
        note = note or f"it ended with {'/'.join(now)} and did with {'/'.join(ended)}"
        return Difference(recorded.line, recorded.request_id, sample, -1, note=note)
    return None
