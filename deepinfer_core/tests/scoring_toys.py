"""A greedy sampler in numpy with penalties, biases and log-probabilities, and its answers without any engine.

Its counts are its own, by ``row_slot``, from the histories that the core sends: a history that is missing, late or of
another request changes the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from engine_toys import EOS, TOKENS, VOCAB, WINDOW, ToySampler, logits_of, row_hidden

from deepinfer_contracts import SamplerOutput
from deepinfer_core.errors import NotSupported


def log_softmax(scores: Any) -> Any:
    shifted = scores.astype(np.float64) - scores.max()
    return (shifted - np.log(np.exp(shifted).sum())).astype(np.float32)


def changed(
    scores: Any,
    counts: Mapping[int, int],
    *,
    frequency: float = 0.0,
    presence: float = 0.0,
    bias: Mapping[int, float] | None = None,
) -> Any:
    """Steps 4 and 5 of 2.2, without repetition."""
    scores = scores.copy()
    for token, amount in (bias or {}).items():
        scores[token] += np.float32(amount)
    for token, count in counts.items():
        scores[token] -= np.float32(frequency) * count + np.float32(presence)
    return scores


class ScoringSampler(ToySampler):
    """:param with_sum_smaller: Return the audit statistic."""

    def __init__(self, *, with_sum_smaller: bool = False) -> None:
        super().__init__()
        self.with_sum_smaller = with_sum_smaller
        self.counts: dict[int, Counter[int]] = {}
        self.scored: list[int] = []
        """Rows of each slice of prompts."""

    def check_params(self, params: Any) -> None:
        if params.repetition_penalty != 1:
            raise NotSupported("repetition_penalty: the toy has none", details={"field": "repetition_penalty"})

    def prompt_logprobs(self, logits: Any, tokens: Any) -> Any:
        self.scored.append(len(tokens))
        return np.array([log_softmax(row[:TOKENS])[t] for row, t in zip(logits, tokens, strict=True)], dtype=np.float32)

    def sample(self, logits: Any, inputs: Any) -> SamplerOutput:
        self._take_histories(inputs)
        n, most = len(inputs.temperature), int(inputs.max_top_logprobs)
        biases: list[dict[int, float]] = [{} for _ in range(n)]
        if inputs.bias is not None:
            for (row, token), value in zip(inputs.bias.tolist(), inputs.bias_value.tolist(), strict=True):
                biases[row][token] = value
        ids, logprobs = np.zeros(n, np.int32), np.zeros(n, np.float32)
        status, smaller = np.zeros(n, np.int8), np.zeros(n, np.float32)
        top_ids = np.full((n, most), -1, np.int32)
        top_logprobs = np.zeros((n, most), np.float32)
        for i in range(n):
            own = logits[i, :TOKENS].astype(np.float32)
            status[i] = bool(np.isnan(own).any())
            own = np.nan_to_num(own)
            counts = self.counts.get(int(inputs.row_slot[i]), Counter())
            frequency, presence = float(inputs.frequency_penalty[i]), float(inputs.presence_penalty[i])
            scores = changed(own, counts, frequency=frequency, presence=presence, bias=biases[i])
            forced = -1 if inputs.forced is None else int(inputs.forced[i])
            ids[i] = token = int(scores.argmax()) if forced < 0 else forced
            is_raw = inputs.logprobs_raw is not None and inputs.logprobs_raw[i]
            reported = log_softmax(own if is_raw else scores)
            logprobs[i] = reported[token]
            probabilities = np.exp(reported)
            smaller[i] = probabilities[reported < reported[token]].sum() + probabilities[token]
            wanted = 0 if inputs.top_logprobs is None else min(TOKENS, int(inputs.top_logprobs[i]))
            top_ids[i, :wanted] = best = np.argsort(-reported, kind="stable")[:wanted]
            top_logprobs[i, :wanted] = reported[best]
            if frequency or presence:
                counts[token] += 1
        out = SamplerOutput(sampled_ids=ids, sampled_logprob=logprobs, row_status=status)
        if most:
            out.top_ids, out.top_logprobs = top_ids, top_logprobs
        if self.with_sum_smaller:
            out.sum_smaller = np.minimum(smaller, np.float32(1))
        return out

    def _take_histories(self, inputs: Any) -> None:
        if inputs.history_ids is None:
            return
        at = 0
        for slot, count, outputs in zip(
            inputs.row_slot.tolist(), inputs.history_counts.tolist(), inputs.history_outputs.tolist(), strict=True
        ):
            if count:
                self.counts[slot] = Counter(inputs.history_ids[at + count - outputs : at + count].tolist())
            at += count


def solo(
    prompt: Sequence[int], count: int, *, forced: Sequence[int] = (), raw: bool = False, **changes: Any
) -> list[tuple[int, float]]:
    """(token, log-probability) of the answer of :class:`ScoringSampler` to one prompt alone."""
    tokens, out = list(prompt), []
    for n in range(count):
        own = logits_of(np.array([row_hidden(tokens, tokens[-WINDOW:])], dtype=np.uint64))[0, :TOKENS]
        scores = changed(own, Counter(tokens[len(prompt) :]), **changes)
        token = int(scores.argmax()) if n >= len(forced) or forced[n] < 0 else forced[n]
        out.append((token, float(log_softmax(own if raw else scores)[token])))
        tokens.append(token)
        if token == EOS:
            break
    return out


def solo_prompt(prompt: Sequence[int]) -> list[float | None]:
    """Log-probability of each prompt token but the first."""
    out: list[float | None] = [None]
    for n in range(1, len(prompt)):
        own = logits_of(np.array([row_hidden(prompt[:n], prompt[max(0, n - WINDOW) : n])], dtype=np.uint64))[0, :TOKENS]
        out.append(float(log_softmax(own)[prompt[n]]))
    return out


__all__ = ["VOCAB", "ScoringSampler", "changed", "log_softmax", "solo", "solo_prompt"]
