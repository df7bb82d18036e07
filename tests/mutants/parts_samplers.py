"""Faults of samplers of whole steps, of row samplers and of logits filters."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import toy_plugins
from attrs import evolve
from mutant import Mutant

toy_plugins.install()


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """``owner.name`` is ``make`` of what it was."""
    before = getattr(owner, name)
    setattr(owner, name, make(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


def sampling(change: Callable[[Any, Any, Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    """``CanonicalSampler.sample`` as ``change(sample, logits, inputs)``."""

    def make(before: Any) -> Any:
        def sample(self: Any, logits: Any, inputs: Any) -> Any:
            return change(functools.partial(before, self), logits, inputs)

        return sample

    def apply() -> AbstractContextManager[None]:
        from deepinfer_samplers.canonical import CanonicalSampler

        return replaced(CanonicalSampler, "sample", make)

    return apply


def _last_tie(sample: Any, logits: Any, inputs: Any) -> Any:
    out = sample(logits, inputs)
    if inputs.row_count is None:
        wide = np.asarray(logits)
        for row in np.flatnonzero(inputs.temperature < 1e-5):
            best = np.flatnonzero(wide[row] == wide[row, out.sampled_ids[row]])
            out.sampled_ids[row] = best[-1]
    return out


def _first_word_only(sample: Any, logits: Any, inputs: Any) -> Any:
    if inputs.grammar_mask is None:
        return sample(logits, inputs)
    masks = [np.array(mask) for mask in inputs.grammar_mask]
    for mask in masks:
        mask[:, 1:2] = -1
    return sample(logits, evolve(inputs, grammar_mask=masks))


def _accepts_everything(sample: Any, logits: Any, inputs: Any) -> Any:
    from deepinfer_samplers.canonical import CanonicalSampler

    out = sample(logits, inputs)
    if out.accepted is not None:
        self: CanonicalSampler = sample.args[0]
        pool = self._proposer.pool  # type: ignore[union-attr]
        drafts = pool.tokens[np.asarray(inputs.draft_rows)].numpy()
        ends = np.cumsum(inputs.row_count) - 1
        out.accepted = (inputs.row_count - 1).astype(np.int32)
        out.verified_ids = drafts.astype(np.int32)
        out.verified_ids[ends] = -1
    return out


def _keeps_no_static_drafts() -> AbstractContextManager[None]:
    """Drafts of a static step do not get into the pool: the next step verifies older ones."""
    from deepinfer_samplers.static_steps import StaticGreedyStep

    def make(before: Any) -> Any:
        def draft(self: Any, block: Any, sampled: Any) -> Any:
            pool = self._pool
            kept = [part.clone() for part in (pool.tokens, pool.logprobs, pool.confidence)]
            drawn = before(self, block, sampled)
            for part, old in zip((pool.tokens, pool.logprobs, pool.confidence), kept, strict=True):
                part.copy_(old)
            return drawn

        return draft

    return replaced(StaticGreedyStep, "draft", make)


def _spends_the_history(sample: Any, logits: Any, inputs: Any) -> Any:
    if inputs.history_counts is None:
        return sample(logits, inputs)
    return sample(logits, evolve(inputs, history_outputs=inputs.history_counts))


def _writes_the_logits(sample: Any, logits: Any, inputs: Any) -> Any:
    out = sample(logits, inputs)
    logits -= 1.0
    return out


def _stops_at_nan(sample: Any, logits: Any, inputs: Any) -> Any:
    if np.isnan(np.asarray(logits)).any():
        raise FloatingPointError("NaN in the logits")
    return sample(logits, inputs)


def _top_p_without_its_last() -> AbstractContextManager[None]:
    from deepinfer_samplers import filters

    def make(before: Any) -> Any:
        return lambda logits, values, kept: before(logits, values, (kept - 1).clamp(min=1))

    return replaced(filters, "beyond", make)


def _min_p_of_raw_logits() -> AbstractContextManager[None]:
    from deepinfer_samplers import rows

    def make(before: Any) -> Any:
        def process(logits: Any, peaks: Any, chosen: Any) -> Any:
            if chosen.min_p is None:
                return before(logits, peaks, chosen)
            low = (logits < chosen.min_p.unsqueeze(1)) & (logits != peaks.unsqueeze(1))
            return before(logits.masked_fill(low, float("-inf")), peaks, evolve(chosen, min_p=None))

        return process

    return replaced(rows, "process", make)


def toy(name: str, method: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    """A method of a class of ``conformance_toys.choosers`` as ``make`` of what it was."""

    def apply() -> AbstractContextManager[None]:
        from conformance_toys import choosers

        return replaced(getattr(choosers, name), method, make)

    return apply


def _own_noise(before: Any) -> Any:
    noise = np.random.default_rng(1)
    return lambda self, logits, draws: before(self, logits + noise.normal(0, 1, logits.shape).astype(np.float32), draws)


def _draws_shared(before: Any) -> Any:
    return lambda self, logits, draws: before(self, logits, [draws[0]] * len(draws))


def _forbidden_too(before: Any) -> Any:
    return lambda self, logits, draws: before(self, np.maximum(logits, -3.0), draws)


def _takes_anything(before: Any) -> Any:
    return lambda self, min_p=0.05, **others: before(self, min_p)


def _revives(before: Any) -> Any:
    return lambda self, logits, positions: np.maximum(before(self, logits, positions), np.float32(-50.0))


def _softmax_without_a_guard(before: Any) -> Any:
    def apply(self: Any, logits: Any, positions: Any) -> Any:
        changed = before(self, logits, positions)
        return (changed - changed.mean(axis=1, keepdims=True)).astype(np.float32)

    return apply


def _one_buffer(before: Any) -> Any:
    buffers: dict[Any, Any] = {}

    def apply(self: Any, logits: Any, positions: Any) -> Any:
        held = buffers.setdefault(logits.shape, np.empty_like(logits))
        held[:] = before(self, logits, positions)
        return held

    return apply


def _counts_calls(before: Any) -> Any:
    calls = [0]

    def apply(self: Any, logits: Any, positions: Any) -> Any:
        calls[0] += 1
        return before(self, logits, positions) - np.float32(calls[0])

    return apply


def canonical(name: str, caught_by: str, apply: Callable[[], AbstractContextManager[None]], test: str) -> Mutant:
    return Mutant(
        name=name, kind="sampler", subject="canonical", apply=apply, caught_by=f"sampler/{caught_by}.py", test=test
    )


def row_sampler(name: str, make: Callable[[Any], Any], method: str = "sample") -> Mutant:
    return Mutant(
        name=name,
        kind="sampler",
        subject="toy_min_p",
        apply=toy("MinP", method, make),
        caught_by="sampler/test_row_sampler.py",
    )


def logits_filter(name: str, make: Callable[[Any], Any]) -> Mutant:
    return Mutant(
        name=name,
        kind="logits_filter",
        subject="toy_ban",
        apply=toy("Ban", "apply", make),
        caught_by="logits_filter/test_filter.py",
    )


MUTANTS = [
    canonical("greedy_takes_the_last_tie", "test_greedy", sampling(_last_tie), "equal"),
    canonical("sampler_ignores_mask_word_1", "test_masks", sampling(_first_word_only), "every_bit"),
    canonical(
        "top_p_off_by_one", "test_distribution", _top_p_without_its_last, "follow_the_distribution_of_the and p0"
    ),
    canonical("min_p_compares_raw_logits", "test_reported", _min_p_of_raw_logits, "alternatives_are and min_p"),
    canonical("static_drafts_are_lost", "test_static_step", _keeps_no_static_drafts, "gives_what"),
    canonical("verification_accepts_everything", "test_verification", sampling(_accepts_everything), "near-rejection"),
    canonical(
        "seed_ignores_position",
        "test_isolation",
        sampling(lambda sample, logits, inputs: sample(logits, evolve(inputs, sample_pos=inputs.sample_pos * 0))),
        "positions",
    ),
    canonical(
        "seed_depends_on_the_row",
        "test_isolation",
        sampling(
            lambda sample, logits, inputs: sample(
                logits, evolve(inputs, seed=inputs.seed + np.arange(len(inputs.seed), dtype=np.uint64))
            )
        ),
        "alone",
    ),
    canonical(
        "temperature_is_squared",
        "test_distribution",
        sampling(lambda sample, logits, inputs: sample(logits, evolve(inputs, temperature=inputs.temperature**2))),
        "temperature0.5",
    ),
    canonical("presence_counts_the_prompt", "test_changed_logits", sampling(_spends_the_history), "count_prompt"),
    canonical("sampler_writes_the_logits", "test_isolation", sampling(_writes_the_logits), "write"),
    canonical("nan_ends_the_step", "test_faults", sampling(_stops_at_nan), "nan and plain"),
    row_sampler("row_sampler_has_noise_of_its_own", _own_noise),
    row_sampler("row_sampler_shares_one_draw", _draws_shared),
    row_sampler("row_sampler_chooses_forbidden_tokens", _forbidden_too),
    row_sampler("row_sampler_takes_any_parameter", _takes_anything, "__init__"),
    logits_filter("filter_revives_forbidden_tokens", _revives),
    logits_filter("filter_makes_nan", _softmax_without_a_guard),
    logits_filter("filter_returns_one_buffer", _one_buffer),
    logits_filter("filter_counts_its_calls", _counts_calls),
]
