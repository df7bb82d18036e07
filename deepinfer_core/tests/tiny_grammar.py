"""A grammar engine in one page: regular expressions over bytes, by a lazily built DFA. The second engine of its kind.

``regex``: literals, ``.`` (a printable ASCII character), classes, ``\\d \\w \\s``, groups, ``|``, ``* + ? {m,n}``.
``ebnf``: one rule of literal alternatives, ``root ::= "a" | "b"``. ``json_object``: objects of string keys and integer
values. Everything else is refused. The whole text must match.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Edges = list[list[tuple[frozenset[int] | None, int]]]
PRINTABLE = frozenset(range(0x20, 0x7F))
CLASSES = {
    "d": frozenset(b"0123456789"),
    "w": frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"),
    "s": frozenset(b" \t\n\r"),
}
_MEMBER = r'"[a-z]+": ?(0|-?[1-9]\d*)'
JSON_OBJECT = rf"\{{({_MEMBER}(, ?{_MEMBER})*)?\}}"


class Regex:
    """Thompson's construction. ``edges[state]``: (bytes, or None for nothing, next state)."""

    def __init__(self, pattern: str) -> None:
        self._text = pattern
        self._at = 0
        self.edges: Edges = []
        self.start, self.end = self._alternatives()
        if self._at < len(pattern):
            raise ValueError(f"unexpected {pattern[self._at]!r} at {self._at} of {pattern!r}")

    def _state(self) -> int:
        self.edges.append([])
        return len(self.edges) - 1

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at >= len(self._text):
            raise ValueError(f"{self._text!r} ends too early")
        self._at += 1
        return self._text[self._at - 1]

    def _alternatives(self) -> tuple[int, int]:
        start, end = self._state(), self._state()
        while True:
            a, b = self._sequence()
            self.edges[start].append((None, a))
            self.edges[b].append((None, end))
            if self._peek() != "|":
                return start, end
            self._take()

    def _sequence(self) -> tuple[int, int]:
        start = end = self._state()
        while self._peek() not in ("", "|", ")"):
            begun = self._at
            a, b = self._atom()
            low, high = self._bounds()
            after = self._at
            copies = [(a, b)]
            while len(copies) < max(low, high or 0, 1):  # each copy is parsed again
                self._at = begun
                copies.append(self._atom())
            self._at = after
            for i, (a, b) in enumerate(copies):
                self.edges[end].append((None, a))
                if i >= low:
                    self.edges[a].append((None, b))
                end = b
            if high is None:
                self.edges[b].append((None, a))
            exit_state = self._state()  # so that a loop is not entered again from what follows
            self.edges[end].append((None, exit_state))
            end = exit_state
        return start, end

    def _bounds(self) -> tuple[int, int | None]:
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        if self._peek() in simple:
            return simple[self._take()]
        found = re.compile(r"\{(\d+)(,(\d*))?\}").match(self._text, self._at)
        if found is None:
            return 1, 1
        self._at = found.end()
        low = int(found[1])
        high = low if found[2] is None else int(found[3]) if found[3] else None
        if high is not None and high < low:
            raise ValueError(f"the bounds {found[0]} are reversed")
        return low, high

    def _atom(self) -> tuple[int, int]:
        char = self._take()
        if char == "(":
            inner = self._alternatives()
            if self._take() != ")":
                raise ValueError(f"a group of {self._text!r} is not closed")
            return inner
        if char in "*+?)":
            raise ValueError(f"nothing to repeat or close at {self._at - 1} of {self._text!r}")
        start = self._state()
        state = start
        for allowed in self._bytes(char):
            following = self._state()
            self.edges[state].append((allowed, following))
            state = following
        return start, state

    def _bytes(self, char: str) -> list[frozenset[int]]:
        if char == ".":
            return [PRINTABLE]
        if char == "[":
            return [self._class()]
        if char == "\\":
            char = self._take()
            if char in CLASSES:
                return [CLASSES[char]]
            if char.isalnum():
                raise ValueError(f"\\{char} is not supported")
        return [frozenset([byte]) for byte in char.encode()]

    def _class(self) -> frozenset[int]:
        negated = self._peek() == "^"
        if negated:
            self._take()
        chosen: set[int] = set()
        while (char := self._take()) != "]":
            if char == "\\":
                char = self._take()
                if char in CLASSES:
                    chosen |= CLASSES[char]
                    continue
            low = ord(char)
            high = low
            if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] != "]":
                self._take()
                high = ord(self._take())
            if high > 0x7E:
                raise ValueError("classes are for ASCII")
            if high < low:
                raise ValueError(f"a range of {self._text!r} is reversed")
            chosen |= set(range(low, high + 1))
        return frozenset(PRINTABLE - chosen if negated else chosen)


class TinyGrammar:
    """A DFA over sets of states, built as it is walked."""

    def __init__(self, pattern: str, engine: TinyEngine) -> None:
        self.engine = engine
        self._regex = Regex(pattern)
        self._next: dict[tuple[frozenset[int], int], frozenset[int]] = {}
        self._allowed: dict[frozenset[int], Any] = {}
        self._lock = threading.Lock()
        self.start = self._closure({self._regex.start})
        self.nbytes = 64 * len(self._regex.edges)

    def _closure(self, states: set[int]) -> frozenset[int]:
        found, todo = set(states), list(states)
        while todo:
            for allowed, following in self._regex.edges[todo.pop()]:
                if allowed is None and following not in found:
                    found.add(following)
                    todo.append(following)
        return frozenset(found)

    def step(self, state: frozenset[int], byte: int) -> frozenset[int]:
        key = (state, byte)
        if key not in self._next:
            moved = {b for s in state for allowed, b in self._regex.edges[s] if allowed is not None and byte in allowed}
            self._next[key] = self._closure(moved)
        return self._next[key]

    def walk(self, state: frozenset[int], text: bytes) -> frozenset[int]:
        for byte in text:
            state = self.step(state, byte)
        return state

    def may_end(self, state: frozenset[int]) -> bool:
        return self._regex.end in state

    def allowed(self, state: frozenset[int]) -> list[int]:
        """The tokens that may follow, end tokens included."""
        if state not in self._allowed:
            table, eos = self.engine.token_bytes, self.engine.eos_ids
            tokens = [t for t, text in enumerate(table) if text and t not in eos and self.walk(state, text)]
            self._allowed[state] = tokens + (sorted(eos) if self.may_end(state) else [])
        return self._allowed[state]

    def matcher(self) -> TinyMatcher:
        return TinyMatcher(self)


class TinyMatcher:
    """A stack of states; None is behind the end token."""

    def __init__(self, grammar: TinyGrammar) -> None:
        self.grammar = grammar
        self.states: list[frozenset[int] | None] = [grammar.start]

    def accept(self, token: int) -> bool:
        grammar, state = self.grammar, self.states[-1]
        if state is None:
            return False
        if token in grammar.engine.eos_ids:
            if not grammar.may_end(state):
                return False
            self.states.append(None)
            return True
        text = grammar.engine.token_bytes[token] if token < len(grammar.engine.token_bytes) else b""
        following = grammar.walk(state, text) if text else frozenset()
        if not following:
            return False
        self.states.append(following)
        return True

    def fill(self, mask: Any) -> None:
        state = self.states[-1]
        if state is None:
            raise RuntimeError("the matcher has terminated")
        mask[:] = bits(self.grammar.allowed(state), len(mask))

    def rollback(self, n: int) -> None:
        if not 0 <= n < len(self.states):
            raise RuntimeError(f"cannot roll back {n} of {len(self.states) - 1} tokens")
        del self.states[len(self.states) - n :]

    def finished(self) -> bool:
        return self.states[-1] is None


def bits(tokens: Sequence[int], words: int) -> Any:
    """int32 ``[words]`` with the bits of ``tokens`` set."""
    flags = np.zeros(words * 32, dtype=np.uint8)
    flags[list(tokens)] = 1
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)


class TinyEngine:
    """``GrammarEngine`` for the vocabulary of a tokenizer."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self.token_bytes: Sequence[bytes] = tokenizer.token_bytes
        self.eos_ids: frozenset[int] = tokenizer.eos_ids
        self.vocab_size = vocab_size

    def compile(self, so_args: Mapping[str, Any]) -> TinyGrammar:
        kind, text = so_args["schema_type"], so_args["schema"]
        if kind == "regex":
            return TinyGrammar(text, self)
        if kind == "json_object":
            return TinyGrammar(JSON_OBJECT, self)
        if kind == "ebnf":
            return TinyGrammar(_alternatives(text), self)
        raise RuntimeError(f"this engine compiles no {kind}")


def _alternatives(text: str) -> str:
    literal = r'"(?:[^"\\]|\\.)*"'
    if not re.fullmatch(rf"\s*root\s*::=\s*{literal}(\s*\|\s*{literal})*\s*", text):
        raise RuntimeError(f'not of the form root ::= "a" | "b": {text!r}')
    found = (item[1:-1].replace('\\"', '"') for item in re.findall(literal, text))
    return "|".join(re.escape(item) for item in found)
