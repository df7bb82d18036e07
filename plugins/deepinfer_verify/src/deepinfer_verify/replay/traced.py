"""An engine whose answers are recorded as far as bits go: log-probabilities, drafts and their confidences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from attrs import define, field, frozen

from deepinfer_core.errors import DeepInferError, RequestFailed
from deepinfer_core.parameters.sampling_params import SamplingParams

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.requests.outputs import RequestOutput
    from deepinfer_verify.replay.rule import Mode


@frozen
class Wish:
    """One prompt, what is forced behind it, and the mode of its decoder half."""

    name: str
    prompt: tuple[int, ...] = field(repr=False)
    forced: tuple[int, ...] = field(repr=False)
    mode: Mode


@frozen
class Trace:
    """What an engine computed for it."""

    logprobs: tuple[float, ...] = field(repr=False)
    """Of each forced token; the first is of the prefill's last row."""
    drafts: Mapping[int, tuple[tuple[int, float], ...]] = field(repr=False)
    """Position of the token behind which they were drawn -> (id, confidence) of each draft."""
    verified: tuple[int, ...]
    accepted: tuple[int, ...]
    cached: int
    replayed: int


@define
class _Log:
    """Drafts by the seed of their request, which is one of a kind, and the position of the step."""

    drafts: dict[tuple[int, int], tuple[tuple[int, float], ...]] = field(factory=dict)


class _Watched:
    """The engine's sampler, listened to."""

    def __init__(self, sampler: Any, log: _Log, to_host: Any) -> None:
        self._sampler, self._log, self._to_host = sampler, log, to_host

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._sampler, name)
        return self._draft if name == "draft" else value

    def _draft(self, block: Any, inputs: Any, sampled: Any, num_draft: int) -> Any:
        ids, confidences = self._sampler.draft(block, inputs, sampled, num_draft)
        seeds, positions = self._host(inputs.seed).tolist(), self._host(inputs.sample_pos).tolist()
        rows = self._host(ids).tolist()
        chances = self._host(confidences).tolist() if confidences is not None else [[0.0] * num_draft] * len(rows)
        for seed, position, row, chance in zip(seeds, positions, rows, chances, strict=False):
            self._log.drafts[seed, position] = tuple(zip(row, chance, strict=True))
        return ids, confidences

    def _host(self, values: Any) -> Any:
        return np.asarray(values if isinstance(values, np.ndarray) else self._to_host(values))


class _WatchedParts:
    """The parts of an engine, with its sampler listened to."""

    def __init__(self, parts: Any, log: _Log) -> None:
        self._parts, self._log = parts, log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parts, name)

    def make_sampler(self, name: str | None, params: Mapping[str, Any], vocab_size: int) -> Any:
        sampler = self._parts.make_sampler(name, params, vocab_size)
        return _Watched(sampler, self._log, self._parts.backend.to_host)


class TracedEngine:
    """An engine of these settings. A context manager."""

    def __init__(self, config: EngineConfig) -> None:
        from deepinfer_core.assembly.assemble import assemble
        from deepinfer_core.llm import LLM

        self._log = _Log()
        self.llm = LLM.from_assembly(_WatchedParts(assemble(config), self._log))
        self._seed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.llm.close()

    def run(self, wishes: Sequence[Wish]) -> list[Trace]:
        """All of them at once. Raises RequestFailed for one that ends early."""
        first, self._seed = self._seed, self._seed + len(wishes)
        params = [_params(wish, first + at) for at, wish in enumerate(wishes)]
        outputs = self.llm.generate([list(wish.prompt) for wish in wishes], params)
        return [self._trace(wish, first + at, out) for at, (wish, out) in enumerate(zip(wishes, outputs, strict=True))]

    def _trace(self, wish: Wish, seed: int, output: RequestOutput) -> Trace:
        completion = output.outputs[0]
        if completion.error is not None or completion.token_ids != wish.forced or completion.logprobs is None:
            failed = completion.error or DeepInferError(f"it ended with {completion.finish_reason}")
            raise RequestFailed(
                f"{wish.name} ended after {len(completion.token_ids)} of {len(wish.forced)} forced tokens",
                reason=failed.what + (f" ({failed.reason})" if failed.reason else ""),
                remedy=failed.remedy or "run it again with --debug",
            )
        # Steps of the prompt are at positions within it: what they propose, nobody reads.
        drafts = {at: value for (of, at), value in self._log.drafts.items() if of == seed and at >= len(wish.prompt)}
        return Trace(
            tuple(item.logprob for item in completion.logprobs),
            drafts,
            completion.verified_drafts,
            completion.accepted_drafts,
            output.cached_tokens,
            output.replayed_tokens,
        )


def _params(wish: Wish, seed: int) -> SamplingParams:
    return SamplingParams(
        temperature=0,
        max_tokens=len(wish.forced),
        ignore_eos=True,
        forced_token_ids=wish.forced,
        logprobs=True,
        logprobs_mode="raw",
        replay_mode=wish.mode,
        seed=seed,
    )
