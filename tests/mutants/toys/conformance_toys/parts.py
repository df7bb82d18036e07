"""The toy parts of the repository's tests as an installable plugin of every kind, each without a fault."""

from __future__ import annotations

from typing import Any

from deepinfer_core import hookimpl


@hookimpl
def deepinfer_backend_create(name: str) -> Any:
    from conformance_toys.lm import NumpyBackend

    return NumpyBackend()


@hookimpl
def deepinfer_model_match(card: Any) -> Any:
    from deepinfer_core.types import ModelMatch, Requirements

    if card.architecture != "ToyLM":
        return None
    return ModelMatch(name="toylm", requirements=Requirements(ops=frozenset({"meta.feed_tokens"})))


@hookimpl
def deepinfer_cache_specs() -> Any:
    from conformance_toys.lm import SPECS

    return SPECS


@hookimpl
def deepinfer_scheduler_hints() -> Any:
    from conformance_toys.lm import HINTS

    return HINTS


@hookimpl
def deepinfer_model_create(backend: Any) -> Any:
    from conformance_toys.lm import ToyLM

    return ToyLM(backend)


@hookimpl
def deepinfer_sampler_create(params: Any) -> Any:
    from conformance_toys.choosers import MinP

    return MinP(**params)


@hookimpl
def deepinfer_logits_filter_create(params: Any, vocab_size: int) -> Any:
    from conformance_toys.choosers import Ban

    return Ban(vocab_size, **params)


@hookimpl
def deepinfer_grammar_create(tokenizer: Any, vocab_size: int) -> Any:
    from conformance_toys.engine import RegexEngine

    return RegexEngine(tokenizer, vocab_size)


@hookimpl
def deepinfer_scorer_create(params: Any) -> Any:
    from conformance_toys.judge import WordCount

    return WordCount(**params)
