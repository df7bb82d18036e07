"""What a caller gets back: one ``RequestOutput`` per prompt, and ``StreamChunk`` pieces while it grows."""

from __future__ import annotations

from attrs import field, frozen

from deepinfer_core.errors import DeepInferError
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.times import RequestTimes
from deepinfer_core.requests.token_logprobs import TokenLogprob, total


@frozen
class Completion:
    """One answer to a prompt; a failed one has ``error`` set and keeps the text made so far.

    ``finish_reason``: ``stop``, ``length``, ``abort``, ``too_long``, ``no_resource``, ``grammar``, ``input`` or
    ``engine``. ``finish_detail``: one of ``FinishDetail``. ``token_ids`` ends with the token that ended the answer,
    also where its text is left out, and so do ``logprobs`` and the counts.
    """

    index: int
    """Position among the samples of the prompt, from 0."""
    text: str
    token_ids: tuple[int, ...] = field(repr=False)
    finish_reason: str
    finish_detail: FinishDetail = FinishDetail.NONE
    seed: int | None = None
    """The seed that the draws used; the same seed and prompt give the same tokens again."""
    error: DeepInferError | None = None
    so_complete: bool | None = None
    """Whether the answer is a whole sentence of its grammar; none without one. False where ``max_tokens`` cut it."""
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=False)
    """One for each of ``token_ids``, where ``SamplingParams`` asked for them."""
    verified_drafts: tuple[int, ...] = ()
    """Of each place in a block of drafts, how many were verified for this answer; empty without any."""
    accepted_drafts: tuple[int, ...] = ()
    """Of each place, how many of ``token_ids`` were drafts of it; as long as ``verified_drafts``."""
    times: RequestTimes | None = field(default=None, eq=False, repr=False)
    """Where its time went; none for a prompt that no engine saw."""

    @property
    def drafted_tokens(self) -> int:
        """Drafts that were verified for this answer."""
        return sum(self.verified_drafts)

    @property
    def accepted_tokens(self) -> int:
        """Those of ``token_ids`` that were drafts."""
        return sum(self.accepted_drafts)

    @property
    def cumulative_logprob(self) -> float | None:
        """Sum of the log-probabilities of all tokens; none where they were not asked for."""
        return None if self.logprobs is None else total(self.logprobs)

    @property
    def ok(self) -> bool:
        """True if the answer ended by itself: at a stop or at a length limit."""
        return self.error is None and self.finish_reason in ("stop", "length")

    def as_record(self) -> dict[str, object]:
        """The same as JSON-serialisable data."""
        record: dict[str, object] = {
            "index": self.index,
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "finish_detail": str(self.finish_detail),
            "num_output_tokens": len(self.token_ids),
            "seed": self.seed,
        }
        return record | self.extras()

    def extras(self) -> dict[str, object]:
        """The part of the record that not every answer has."""
        record: dict[str, object] = {}
        if self.so_complete is not None:
            record["so_complete"] = self.so_complete
        if self.drafted_tokens:
            record["drafted_tokens"] = self.drafted_tokens
            record["accepted_tokens"] = self.accepted_tokens
            record["verified_drafts"] = list(self.verified_drafts)
            record["accepted_drafts"] = list(self.accepted_drafts)
        if self.logprobs is not None:
            record["cumulative_logprob"] = self.cumulative_logprob
            record["logprobs"] = [item.as_record() for item in self.logprobs]
        if self.times is not None:
            record["times"] = self.times.as_record()
        if self.error is not None:
            record["error"] = self.error.as_record()
        return record


@frozen
class RequestOutput:
    """The result of one prompt: ``SamplingParams.n`` completions.

    ``text``, ``token_ids``, ``logprobs``, ``cumulative_logprob``, ``finish_reason``, ``finish_detail``, ``seed``,
    ``times`` and ``error`` are those of the first one.
    """

    index: int
    """Position among the prompts of the call, from 0."""
    request_id: str
    prompt: str | None
    """The prompt as text; none where it was given as token ids."""
    prompt_token_ids: tuple[int, ...] = field(repr=False)
    outputs: tuple[Completion, ...]
    cached_tokens: int = 0
    """Prompt tokens that a prefix cache saved: they were not computed for this prompt."""
    replayed_tokens: int = 0
    """Tokens behind them whose blocks were there, and which ran again to rebuild the sliding windows."""
    total_s: float = 0.0
    """Seconds from submission to the end of the last completion."""
    prompt_logprobs: tuple[float | None, ...] | None = field(default=None, repr=False)
    """One for each prompt token, none for the first, where ``SamplingParams`` asked for them; no tuple at all if the
    prompt ended without a token."""
    emulated: bool = False
    """An emulated backend made it (setting ``emulate``): it says nothing of a device."""

    @property
    def text(self) -> str:
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.outputs[0].token_ids

    @property
    def finish_reason(self) -> str:
        return self.outputs[0].finish_reason

    @property
    def finish_detail(self) -> FinishDetail:
        return self.outputs[0].finish_detail

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...] | None:
        return self.outputs[0].logprobs

    @property
    def cumulative_logprob(self) -> float | None:
        return self.outputs[0].cumulative_logprob

    @property
    def seed(self) -> int | None:
        return self.outputs[0].seed

    @property
    def times(self) -> RequestTimes | None:
        return self.outputs[0].times

    @property
    def error(self) -> DeepInferError | None:
        return self.outputs[0].error

    @property
    def ok(self) -> bool:
        """True if every completion ended by itself: at a stop or at a length limit."""
        return all(completion.ok for completion in self.outputs)

    def as_record(self) -> dict[str, object]:
        """The same as JSON-serialisable data; ``outputs`` lists the completions where there are several."""
        first = self.outputs[0]
        record: dict[str, object] = {
            "index": self.index,
            "id": self.request_id,
            "prompt": self.prompt,
            "text": first.text,
            "token_ids": list(first.token_ids),
            "finish_reason": first.finish_reason,
            "finish_detail": str(first.finish_detail),
            "num_prompt_tokens": len(self.prompt_token_ids),
            "cached_tokens": self.cached_tokens,
            "replayed_tokens": self.replayed_tokens,
            "num_output_tokens": len(first.token_ids),
            "seed": first.seed,
        }
        record |= first.extras()
        if self.emulated:
            record["emulated"] = True
        if self.prompt_logprobs is not None:
            record["prompt_logprobs"] = list(self.prompt_logprobs)
        if len(self.outputs) > 1:
            record["outputs"] = [completion.as_record() for completion in self.outputs]
        return record


@frozen
class StreamChunk:
    """New text and tokens of one sample of a prompt. The joined ``text`` of a sample's chunks is its whole text."""

    index: int
    request_id: str
    text: str
    token_ids: tuple[int, ...]
    output: RequestOutput | None = None
    """The whole result; set on the last chunk of the prompt."""
    sample: int = 0
    """Which of the prompt's ``n`` samples grew."""
    completion: Completion | None = None
    """The whole sample; set on its last chunk."""
    logprobs: tuple[TokenLogprob, ...] | None = field(default=None, repr=False)
    """One for each of ``token_ids``, where ``SamplingParams`` asked for them."""
    emulated: bool = False
    """An emulated backend made it."""

    @property
    def finished(self) -> bool:
        """Whether this is the last chunk of the prompt."""
        return self.output is not None
