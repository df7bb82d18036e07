"""Fixtures of the grammar tests: the engine for the kit's vocabulary, and what it compiles."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from deepinfer_core.conformance.failures import fail, require
from deepinfer_core.conformance.grammar.cases import CASES, KINDS, Case
from deepinfer_core.conformance.grammar.vocabulary import tokenizer, vocab_size
from deepinfer_core.conformance.part import Part, not_offered
from deepinfer_core.conformance.part_fixture import part
from deepinfer_core.interfaces import Grammar

__all__ = ["part"]
LIMIT_S = 20.0  # the default of the setting so_timeout_s


@pytest.fixture(scope="session")
def engine(part: Part) -> Any:
    """The grammar engine."""
    return part.hooks.grammar_create(part.owner, tokenizer(), vocab_size())


@pytest.fixture(scope="session")
def compiled(engine: Any) -> Callable[[Any], Any]:
    """``compiled(so_args)``: what the engine makes of it, within the time that a request has; raises what it raised."""

    def compile_within(so_args: Any) -> Any:
        outcome: list[Any] = []

        def work() -> None:
            try:
                outcome.append(engine.compile(so_args))
            except BaseException as error:  # a panic of a compiled library is no Exception: it is judged below
                outcome.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(LIMIT_S)
        if not outcome:
            fail(f"nothing was compiled within {LIMIT_S:.0f} s", grammar=so_args)
        if isinstance(outcome[0], Exception):
            raise outcome[0]
        if isinstance(outcome[0], BaseException):
            fail("compile raised what is no Exception: it would end the worker", got=repr(outcome[0]), grammar=so_args)
        return outcome[0]

    return compile_within


@pytest.fixture(scope="session")
def offers(compiled: Callable[[Any], Any]) -> Callable[[str], str | None]:
    """``offers(kind)``: None, or why the engine compiles no grammar of that schema_type."""

    @functools.cache
    def refusal(kind: str) -> str | None:
        first = next(case for case in CASES if case.kind == kind)
        try:
            compiled(first.so_args)
        except Exception as error:
            return str(error) or type(error).__name__
        return None

    require(any(refusal(kind) is None for kind in KINDS), "it compiles no kind of grammar", tried=", ".join(KINDS))
    return refusal


@pytest.fixture
def grammar_of(compiled: Callable[[Any], Any], offers: Callable[[str], str | None]) -> Callable[[Case], Any]:
    """Compile a case; skips the test where the engine does not offer its kind."""

    def make(case: Case) -> Any:
        reason = offers(case.kind)
        if reason is not None:
            not_offered(f"{case.kind} ({reason})")
        try:
            grammar = compiled(case.so_args)
        except Exception as error:
            not_offered(f"{case.name} ({error})")
        require(isinstance(grammar, Grammar), "compile returned no Grammar", got=type(grammar).__name__)
        return grammar

    return make
