"""Structured output over the toy parts: what an answer must be, found without any engine; engines that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from drafting_toys import DRAFT_RING, DraftingBackend, DraftingSampler, Pattern, draft_hints
from engine_toys import BLOCK, EOS, TOKENS, VOCAB, WINDOW, ToyModel, byte_tokenizer, logits_of, row_hidden, toy_llm
from tiny_grammar import TinyEngine

from deepinfer_core.llm import LLM
from deepinfer_core.types import CacheLayer, CacheSpec

WORDS = -(-VOCAB // 32)


def grammar_llm(
    make: Callable[..., Any] = TinyEngine, *, parts: Mapping[str, Any] | None = None, **settings: Any
) -> LLM:
    return toy_llm(parts={"grammar": make, **(parts or {})}, **settings)


def drafting_llm(
    num_draft: int,
    pattern: Pattern,
    texts: Sequence[Sequence[int]],
    make: Callable[..., Any] = TinyEngine,
    **settings: Any,
) -> LLM:
    """``texts[i]``: prompt and answer of the request with seed ``i + 1``, from which its drafts are taken."""
    pytest.importorskip("torch", reason="the ops of two steps in flight are plain torch")
    parts: dict[str, Any] = {
        "backend": DraftingBackend(),
        "model": ToyModel(DRAFT_RING),
        "hints": draft_hints(num_draft),
        "sampler": DraftingSampler(num_draft, {i + 1: text for i, text in enumerate(texts)}, pattern, device=False),
        "cache_specs": (
            CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
            CacheSpec("swa", "swa", [CacheLayer(0, DRAFT_RING, "i64", 1)]),
        ),
    }
    return grammar_llm(make, parts=parts, **settings)


def allowed_by(matcher: Any) -> Any:
    """Boolean [VOCAB] of what the matcher of an engine allows."""
    mask = np.zeros(WORDS, dtype=np.int32)
    matcher.fill(mask)
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:VOCAB].astype(bool)


def matcher_of(kind: str, schema: str) -> Any:
    return TinyEngine(byte_tokenizer(), VOCAB).compile({"schema_type": kind, "schema": schema}).matcher()


def solo_in_grammar(prompt: Sequence[int], count: int, kind: str, schema: str) -> list[int]:
    """Greedy tokens of the toy model under a grammar: a list as history, a matcher fed with emitted tokens only."""
    matcher = matcher_of(kind, schema)
    tokens = list(prompt)
    for _ in range(count):
        hidden = np.array([row_hidden(tokens, tokens[-WINDOW:])], dtype=np.uint64)
        scores = np.where(allowed_by(matcher), logits_of(hidden)[0], -np.inf)[:TOKENS]
        token = int(scores.argmax())
        tokens.append(token)
        if not matcher.accept(token):
            raise AssertionError(f"the mask allows {token}, the matcher does not take it")
        if token == EOS:
            break
    return tokens[len(prompt) :]


class GatedEngine(TinyEngine):
    """Compiles a schema that begins with ``slow`` only when its gate is opened; ``begun`` says that it waits."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        super().__init__(tokenizer, vocab_size)
        self.gate = threading.Event()
        self.begun = threading.Semaphore(0)
        self.compiled: list[str] = []

    def compile(self, so_args: Mapping[str, Any]) -> Any:
        if so_args["schema"].startswith("slow"):
            self.begun.release()
            if not self.gate.wait(60):
                raise RuntimeError("nobody opened the gate")
        self.compiled.append(so_args["schema"])
        return super().compile(so_args)


class Gates:
    """Makes a :class:`GatedEngine` and keeps it: ``parts["grammar"]`` of a toy."""

    engine: GatedEngine

    def __init__(self) -> None:
        self.engine = GatedEngine(byte_tokenizer(), VOCAB)

    def __call__(self, tokenizer: Any, vocab_size: int) -> GatedEngine:
        return self.engine


class FakeClock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def __call__(self) -> float:
        return self.time_s


class FaultyEngine(TinyEngine):
    """``fault(method, number of the call, go)`` may raise, or change what ``go()`` gives.

    Methods: ``compile``, ``matcher``, ``accept``, ``fill``, ``rollback``, ``finished``; of one schema only.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, schema: str, fault: Callable[[str, int, Any], Any]) -> None:
        super().__init__(tokenizer, vocab_size)
        self._schema = schema
        self._fault = fault
        self._calls: dict[str, int] = {}

    def compile(self, so_args: Mapping[str, Any]) -> Any:
        if so_args["schema"] != self._schema:
            return super().compile(so_args)
        made = self.call("compile", lambda: super(FaultyEngine, self).compile(so_args))
        return FaultyGrammar(made, self) if hasattr(made, "matcher") else made

    def call(self, method: str, go: Callable[[], Any]) -> Any:
        self._calls[method] = number = self._calls.get(method, 0) + 1
        return self._fault(method, number, go)


class FaultyGrammar:
    def __init__(self, grammar: Any, engine: FaultyEngine) -> None:
        self._grammar = grammar
        self._engine = engine

    def matcher(self) -> Any:
        made = self._engine.call("matcher", self._grammar.matcher)
        return FaultyMatcher(made, self._engine) if hasattr(made, "accept") else made


class FaultyMatcher:
    def __init__(self, matcher: Any, engine: FaultyEngine) -> None:
        self._matcher = matcher
        self._engine = engine

    def accept(self, token: int) -> Any:
        return self._engine.call("accept", lambda: self._matcher.accept(token))

    def fill(self, mask: Any) -> Any:
        return self._engine.call("fill", lambda: self._matcher.fill(mask))

    def rollback(self, n: int) -> Any:
        return self._engine.call("rollback", lambda: self._matcher.rollback(n))

    def finished(self) -> Any:
        return self._engine.call("finished", self._matcher.finished)
