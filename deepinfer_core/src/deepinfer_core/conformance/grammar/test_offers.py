"""What an engine compiles, and how it refuses the rest (``interfaces.GrammarEngine``)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.grammar.cases import CASES, HOSTILE, KINDS
from deepinfer_core.conformance.grammar.vocabulary import end_token
from deepinfer_core.conformance.grammar.walks import holds, mask_of
from deepinfer_core.conformance.part import not_offered
from deepinfer_core.interfaces import Grammar, GrammarEngine, Matcher

pytestmark = pytest.mark.hook("deepinfer_grammar_create")


@pytest.mark.level("smoke")
def test_engine_grammars_and_matchers_have_their_methods(engine: Any, grammar_of: Any, offers: Any) -> None:
    require(isinstance(engine, GrammarEngine), "it is no GrammarEngine")
    case = next(case for case in CASES if offers(case.kind) is None)
    grammar = grammar_of(case)
    require(isinstance(grammar, Grammar), "compile returned no Grammar")
    require(isinstance(grammar.matcher(), Matcher), "matcher() returned no Matcher")
    size = getattr(grammar, "nbytes", 0)
    require(isinstance(size, int) and size >= 0, "nbytes is no number of bytes", got=size)


@pytest.mark.level("smoke")
@pytest.mark.parametrize("kind", KINDS)
def test_kind_of_grammar_is_compiled_or_refused_with_a_text(offers: Any, kind: Any) -> None:
    reason = offers(kind)
    if reason is not None:
        require(len(reason) > 3, "a kind of grammar is refused without a word", kind=kind, got=reason)
        not_offered(f"{kind} ({reason})")


@pytest.mark.level("core")
@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.name)
def test_what_is_no_grammar_is_refused_with_a_text(compiled: Any, case: Any) -> None:
    """Whatever it raises ends the one request that brought it, and is shown to its author."""
    try:
        compiled(case.so_args)
    except Exception as error:
        require(str(error).strip(), "an error without a text", got=type(error).__name__)
        return
    require(case.may_compile, "it was compiled, and is no grammar or cannot be enforced", grammar=case.so_args)


@pytest.mark.level("core")
def test_engine_goes_on_after_refusals(compiled: Any, grammar_of: Any, offers: Any) -> None:
    case = next(case for case in CASES if offers(case.kind) is None)
    for hostile in HOSTILE:
        try:
            compiled(hostile.so_args)
        except Exception:  # that it raises is judged above
            continue
    grammar = grammar_of(case)
    for text in case.holds:
        require(holds(grammar, text), "after refusals a good grammar does not hold its text", text=text)


@pytest.mark.level("core")
def test_compiling_in_several_threads_gives_the_same_grammars(engine: Any, offers: Any) -> None:
    """As the core does: workers compile while others do."""
    cases = [case for case in CASES if offers(case.kind) is None]
    masks: dict[tuple[int, str], object] = {}

    def work(number: int) -> None:
        for case in cases[number:] + cases[:number]:
            try:
                masks[number, case.name] = mask_of(engine.compile(case.so_args).matcher()).tolist()
            except Exception as error:
                masks[number, case.name] = repr(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
        require(not thread.is_alive(), "compiling in four threads did not end within 60 s")
    for case in cases:
        for number in range(1, 4):
            require_equal(
                masks[number, case.name], masks[0, case.name], "threads got different grammars", grammar=case.name
            )


@pytest.mark.level("core")
def test_compiling_again_gives_an_equal_grammar(compiled: Any, grammar_of: Any) -> None:
    for case in CASES[:3]:
        first, second = grammar_of(case), compiled(case.so_args)
        for text in case.holds:
            require(holds(first, text) and holds(second, text), "compiled again it does not hold its text", text=text)


@pytest.mark.level("smoke")
def test_end_token_is_no_text(grammar_of: Any) -> None:
    """It ends a text, whatever it may look like; behind it there is nothing."""
    matcher = grammar_of(CASES[0]).matcher()
    require_equal(matcher.accept(end_token()), False, "the end was accepted where the text may not end")
    require_equal(matcher.finished(), False, "finished before an end token")
