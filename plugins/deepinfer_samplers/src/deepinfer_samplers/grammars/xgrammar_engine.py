"""The grammar engine ``xgrammar``: what a request asks for is lowered, compiled for one vocabulary, and followed.

Specification: structured output, sections 3.1, 3.3, 3.4 and 3.7.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deepinfer_core.errors import InvalidParameter
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_samplers.grammars import ebnf, json_schema, library, structural_tag
from deepinfer_samplers.grammars.grammar_text import regex_grammar, schema_grammar
from deepinfer_samplers.grammars.json_schema import Lowered
from deepinfer_samplers.grammars.surrogates import SurrogateGuard

THREADS = 2
JSON_OBJECT = '{"type": "object"}'
_SOURCE = re.compile(r"^\[[0-9:]+\] [^ ]*/(?P<file>[a-z_]+\.cc):\d+: ")


class XGrammarEngine:
    """Compiles grammars for one tokenizer and one width of logits.

    :param tokenizer: ``token_bytes`` has the text of each token; those without text are never allowed, except that
        ``eos_ids`` are, where the text may end.
    :param vocab_size: Tokens of a mask. Ids beyond the tokenizer have no text.
    :param cache_bytes: Memory for compiled grammars; the least recently used go first. 0: none are kept.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, cache_bytes: int) -> None:
        """Raises VendorImportError without a usable library, InvalidParameter for a tokenizer without end tokens."""
        self._library = library.load()
        table = tokenizer.token_bytes
        words = [table[i] if i < len(table) else b"" for i in range(vocab_size)]
        stops = sorted(i for i in tokenizer.eos_ids if i < vocab_size)
        if not stops:
            raise InvalidParameter(
                "structured output needs an end token, and the tokenizer has none below the width of the logits",
                remedy="name eos_token_id in config.json or generation_config.json",
            )
        for stop in stops:  # an end token that spells something is an end all the same
            words[stop] = b""
        self.vocab_size = vocab_size
        self._guard = SurrogateGuard(words)
        self._info = self._library.TokenizerInfo(
            self._guard.words, vocab_type=self._library.VocabType.RAW, vocab_size=vocab_size, stop_token_ids=stops
        )
        self._compiler = self._library.GrammarCompiler(
            self._info, max_threads=THREADS, cache_enabled=cache_bytes != 0, cache_limit_bytes=cache_bytes or -1
        )

    def compile(self, so_args: Mapping[str, Any]) -> XGrammar:
        """Compile ``{"schema_type", "schema"}``. Thread-safe.

        :raises InvalidParameter: the schema is malformed, allows nothing, or says what cannot be enforced (then
            ``details`` has ``path`` and ``keywords``).
        """
        kind, schema = so_args.get("schema_type"), so_args.get("schema", "")
        kinds: dict[str, Callable[[str], Any]] = {
            "json": self._json, "regex": self._regex, "ebnf": self._ebnf, "structural_tag": self._structural_tag,
            "json_object": lambda _: self._json(JSON_OBJECT),
        }  # fmt: skip
        if kind not in kinds:
            raise InvalidParameter(
                f"unknown schema_type {kind!r}", reason=f"known are: {', '.join(kinds)}", remedy="use one of them"
            )
        if not isinstance(schema, str):
            raise InvalidParameter(f"schema must be a string, got {type(schema).__name__}", remedy="pass its text")
        if any(0xD800 <= ord(char) <= 0xDFFF for char in schema):
            raise InvalidParameter("the schema is not UTF-8: it holds half of a surrogate pair", remedy="pass UTF-8")
        try:
            compiled = kinds[str(kind)](schema)
        except InvalidParameter:
            raise
        except Exception as err:  # the library raises RuntimeError and its subclasses, and ValueError of its front
            raise InvalidParameter(
                f"the {kind} grammar cannot be compiled", reason=_message(err), remedy="repair the grammar"
            ) from err
        grammar = XGrammar(self._library, compiled, self.vocab_size, self._guard)
        if not grammar.allows_something():
            raise InvalidParameter(
                f"the {kind} grammar allows nothing",
                reason="no token can begin a text of it, and the empty text is none",
                remedy="check it for contradictions, and for characters that the vocabulary cannot spell",
            )
        return grammar

    def _json(self, schema: str) -> Any:
        return self._compiler.compile_grammar(self._schema_grammar(json_schema.lowered(schema)))

    def _schema_grammar(self, lowered: Lowered) -> str:
        return schema_grammar(self._library, lowered)

    def _regex(self, pattern: str) -> Any:
        return self._compiler.compile_grammar(regex_grammar(pattern))

    def _ebnf(self, grammar: str) -> Any:
        ebnf.check(grammar)
        return self._compiler.compile_grammar(grammar)

    def _structural_tag(self, tag: str) -> Any:
        return self._compiler.compile_structural_tag(structural_tag.lowered(tag, self._schema_grammar))


class XGrammar:
    """A compiled grammar, shared by the requests that use it."""

    def __init__(self, library: Any, compiled: Any, vocab_size: int, guard: SurrogateGuard) -> None:
        self._library, self._compiled, self._vocab_size, self._guard = library, compiled, vocab_size, guard

    @property
    def nbytes(self) -> int:
        """About how much memory it holds."""
        return int(self._compiled.memory_size_bytes)

    def matcher(self) -> XGrammarMatcher:
        """A new matcher at the start of the grammar."""
        return XGrammarMatcher(self._library.GrammarMatcher(self._compiled), self._vocab_size, self._guard)

    def allows_something(self) -> bool:
        """Whether any token may come first."""
        mask = np.zeros((self._vocab_size + 31) // 32, np.int32)
        self.matcher().fill(mask)
        return bool(mask.any())


class XGrammarMatcher:
    """Where one answer is in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int, guard: SurrogateGuard) -> None:
        self._matcher, self._vocab_size, self._guard = matcher, vocab_size, guard
        self._opened = [False]  # behind each accepted token: whether it ended in the first byte of a surrogate
        self._last_word = (1 << (vocab_size % 32)) - 1 if vocab_size % 32 else -1

    def accept(self, token: int) -> bool:
        """Take ``token``; False, and nothing changes, if it is not allowed here."""
        if not 0 <= token < self._vocab_size or self._matcher.is_terminated():
            return False
        if self._opened[-1] and token in self._guard.barred:
            return False
        try:
            taken = bool(self._matcher.accept_token(int(token)))
        except RuntimeError:  # the library raises for special tokens, which are never allowed
            return False
        if taken:
            self._opened.append(token in self._guard.opening)
        return taken

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write the tokens that are allowed next into ``mask``, int32 ``[ceil(vocab_size / 32)]``."""
        if not self._matcher.fill_next_token_bitmask(mask[None]):
            mask.fill(-1)
        if self._opened[-1]:
            mask &= self._guard.kept
        mask[-1] &= self._last_word  # the library leaves what lies beyond the vocabulary as it comes

    def rollback(self, n: int) -> None:
        """Undo the last ``n`` accepted tokens, an end token included."""
        if n:
            self._matcher.rollback(n)
            del self._opened[-n:]

    def finished(self) -> bool:
        """Whether an end token was accepted."""
        return bool(self._matcher.is_terminated())


def _message(err: Exception) -> str:
    """The library's message without its time stamps and source places."""
    lines = [_SOURCE.sub("", line).strip() for line in str(err).splitlines()]
    return " ".join(line for line in lines if line)[:500]
