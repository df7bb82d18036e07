"""Faults of models, grammar engines and extensions, made in the toys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import attrs
import numpy as np
import toy_plugins
from mutant import Mutant

toy_plugins.install()


def patched(module: str, path: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    """What ``path`` (``ToyLM.forward``) names in a module of the toys, as ``make`` of what it was."""

    @contextmanager
    def apply() -> Iterator[None]:
        from importlib import import_module

        *owners, name = path.split(".")
        owner = import_module(module)
        for part in owners:
            owner = getattr(owner, part)
        had, before = name in vars(owner), getattr(owner, name)
        setattr(owner, name, make(before))
        try:
            yield
        finally:
            if had:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

    return apply


def forward(change: Callable[[Any, Any], Any]) -> Callable[[], AbstractContextManager[None]]:
    """The toy model, whose steps run over ``change(inputs, caches)``."""

    def make(before: Any) -> Any:
        return lambda self, inputs, caches: before(self, change(inputs, caches), caches)

    return patched("conformance_toys.lm", "ToyLM.forward", make)


def _one_too_many(inputs: Any, caches: Any) -> Any:
    if inputs.is_prompt:
        return inputs
    return attrs.evolve(inputs, context_lens=inputs.context_lens + 1)


def _first_table_for_all(inputs: Any, caches: Any) -> Any:
    if inputs.is_prompt:
        return inputs
    return attrs.evolve(inputs, block_tables=np.repeat(inputs.block_tables[:1], len(inputs.block_tables), axis=0))


def _chunk_without_its_edge(inputs: Any, caches: Any) -> Any:
    """The last token of the chunk before is read from the place beside it."""
    if not inputs.is_prompt:
        return inputs
    pivots = np.array(inputs.swa_pivots)
    some = pivots[:, 1] > 0
    pivots[some, 0] += 1
    pivots[some, 1] -= 1
    return attrs.evolve(inputs, swa_pivots=pivots)


def _stores_one_further(inputs: Any, caches: Any) -> Any:
    if inputs.is_prompt:
        return inputs
    caches.main.reshape(-1)[(inputs.slot_main[1] + 1) % caches.main.size] = 1
    return inputs


def _calls_undeclared(before: Any) -> Any:
    def run(self: Any, inputs: Any, caches: Any) -> Any:
        getattr(self.backend, "norm", None) and self.backend.norm.rms(None, None, eps=1e-6)
        return before(self, inputs, caches)

    return run


def _writes_inputs(inputs: Any, caches: Any) -> Any:
    inputs.positions[:] += 1
    return inputs


def _depends_on_the_batch(before: Any) -> Any:
    return lambda self, hidden: before(self, hidden) + np.float32(0.5) * (len(hidden) % 2) * np.arange(260, dtype="f4")


def _draws_from_a_clock(before: Any) -> Any:
    calls = [0]

    def logits(self: Any, hidden: Any) -> Any:
        calls[0] += 1
        return before(self, hidden) * np.float32(1 + calls[0] % 2)

    return logits


def _takes_every_card(before: Any) -> Any:
    def match(card: Any) -> Any:
        return before(card=attrs.evolve(card, architecture="ToyLM"))

    return _hook(match)


def _hook(function: Any) -> Any:
    from deepinfer_core import hookimpl

    return hookimpl(function)


def _raises_key_error(before: Any) -> Any:
    def match(card: Any) -> Any:
        return before(card=card) if card.config["vocab_size"] + 1 else None

    return _hook(match)


def _rollback_forgets_one(before: Any) -> Any:
    return lambda self, n: before(self, max(n - 1, 0))


def _bits_reversed(before: Any) -> Any:
    def fill(self: Any, mask: Any) -> None:
        before(self, mask)
        flags = np.unpackbits(mask.view(np.uint8), bitorder="little")
        mask[:] = np.packbits(flags, bitorder="big").view(np.int32)

    return fill


def _leaves_words(before: Any) -> Any:
    def fill(self: Any, mask: Any) -> None:
        kept = mask[-1]
        before(self, mask)
        mask[-1] = kept

    return fill


def _end_everywhere(before: Any) -> Any:
    def fill(self: Any, mask: Any) -> None:
        from deepinfer_core.conformance.grammar.vocabulary import end_token

        before(self, mask)
        word, bit = divmod(end_token(), 32)
        mask[word] |= np.array(1 << bit, np.int64).astype(np.int32)

    return fill


def _matchers_shared(before: Any) -> Any:
    def matcher(self: Any) -> Any:
        self.only = getattr(self, "only", None) or before(self)
        return self.only

    return matcher


def _refused_tokens_count(before: Any) -> Any:
    def accept(self: Any, token: int) -> bool:
        if before(self, token):
            return True
        self.states.append(self.states[-1])
        return False

    return accept


def _compiles_anything(before: Any) -> Any:
    def compile_(self: Any, so_args: Any) -> Any:
        try:
            return before(self, so_args)
        except Exception:
            return before(self, {"schema_type": "regex", "schema": ".*"})

    return compile_


def _not_marked(before: Any) -> Any:
    def checks(host: Any) -> Any:
        return before(host)

    return checks


def _unknown_status(before: Any) -> Any:
    def checks(host: Any) -> Any:
        from deepinfer_core.types import DoctorCheck

        return [DoctorCheck("host", "warning", "it is old")]  # type: ignore[arg-type]

    return _hook(checks)


def _problem_without_words(before: Any) -> Any:
    def checks(host: Any) -> Any:
        from deepinfer_core.types import DoctorCheck

        return [DoctorCheck("host", "problem", "bad")]

    return _hook(checks)


def model(name: str, caught_by: str, apply: Callable[[], AbstractContextManager[None]], test: str = "") -> Mutant:
    return Mutant(
        name=name,
        kind="model",
        subject="toylm",
        options=("--on", "toy"),
        apply=apply,
        caught_by=f"model/{caught_by}.py",
        test=test,
    )


def grammar(name: str, path: str, make: Callable[[Any], Any], caught_by: str = "test_walks") -> Mutant:
    module = "conformance_toys.engine" if path.startswith("RegexEngine") else "tiny_grammar"
    return Mutant(
        name=name,
        kind="grammar",
        subject="toy_regex",
        apply=patched(module, path, make),
        caught_by=f"grammar/{caught_by}.py",
    )


def extension(name: str, make: Callable[[Any], Any], caught_by: str) -> Mutant:
    return Mutant(
        name=name,
        kind="extension",
        subject="toy_extension",
        apply=patched("conformance_toys.extension", "deepinfer_doctor_checks", make),
        caught_by=f"{caught_by}.py",
    )


LM, HOOKS = "conformance_toys.lm", "conformance_toys.parts"
MUTANTS = [
    model("model_reads_a_stale_page", "test_pages", forward(_one_too_many)),
    model("model_ignores_the_row_map", "test_steps", forward(_first_table_for_all), "batch or share"),
    model("model_forgets_the_edge_of_a_chunk", "test_steps", forward(_chunk_without_its_edge), "chunks"),
    model("model_writes_beside_its_slot", "test_pages", forward(_stores_one_further)),
    model("model_calls_an_undeclared_op", "test_ops", patched(LM, "ToyLM.forward", _calls_undeclared)),
    model("model_writes_its_inputs", "test_forward", forward(_writes_inputs), "write"),
    model("model_depends_on_the_batch", "test_steps", patched(LM, "ToyLM.logits", _depends_on_the_batch)),
    model("model_is_not_repeatable", "test_forward", patched(LM, "ToyLM.logits", _draws_from_a_clock)),
    model("model_takes_every_card", "test_match", patched(HOOKS, "deepinfer_model_match", _takes_every_card)),
    model("model_match_raises_a_key_error", "test_match", patched(HOOKS, "deepinfer_model_match", _raises_key_error)),
    grammar("rollback_forgets_one_token", "TinyMatcher.rollback", _rollback_forgets_one),
    grammar("fill_with_reversed_bits", "TinyMatcher.fill", _bits_reversed),
    grammar("fill_leaves_the_last_word", "TinyMatcher.fill", _leaves_words),
    grammar("end_is_allowed_everywhere", "TinyMatcher.fill", _end_everywhere),
    grammar("matchers_are_shared", "TinyGrammar.matcher", _matchers_shared),
    grammar("refused_tokens_are_kept", "TinyMatcher.accept", _refused_tokens_count),
    grammar("anything_is_compiled", "RegexEngine.compile", _compiles_anything, "test_offers"),
    extension("hook_is_not_marked", _not_marked, "extension/test_extension"),
    extension("check_with_an_unknown_status", _unknown_status, "common/test_doctor"),
    extension("problem_without_words", _problem_without_words, "common/test_doctor"),
]
