"""Random walks over what a matcher allows, and looks at one place of a walk from every side."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from attrs import define, field

from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.grammar.vocabulary import end_token, text_of, tokenizer, vocab_size

_CLOSING = (b'"', b"}", b"]", b")", b"/", b"<")


def mask_of(matcher: Any) -> Any:
    """The mask at this place, filled twice over different rubbish: every word of it must be written."""
    words = -(-vocab_size() // 32)
    first, second = np.full(words, -1, np.int32), np.full(words, 0x55AA55AA, np.int32)
    matcher.fill(first)
    matcher.fill(second)
    require(np.array_equal(first, second), "fill leaves words of the mask as they were, or differs from call to call")
    flags = np.unpackbits(first.view(np.uint8), bitorder="little")
    beyond = np.flatnonzero(flags[vocab_size() :])
    require(not len(beyond), "a mask has bits beyond the vocabulary", got=beyond.tolist())
    return flags[: vocab_size()].astype(bool)


@define(eq=False)
class Walk:
    """A matcher, what it took so far, and the mask before each token."""

    matcher: Any
    name: str
    tokens: list[int] = field(factory=list)
    masks: list[Any] = field(factory=list)

    @property
    def text(self) -> bytes:
        return text_of(self.tokens)

    def facts(self) -> dict[str, object]:
        return {"grammar": self.name, "behind": self.text}

    def take(self, token: int) -> None:
        """Go on with an allowed token."""
        require(self.matcher.accept(token) is True, "an allowed token was not accepted", token=token, **self.facts())
        self.tokens.append(token)

    def allowed(self) -> Any:
        mask = mask_of(self.matcher)
        textless = np.array([not text for text in tokenizer().token_bytes] + [True] * 5)
        textless[end_token()] = False
        wrong = np.flatnonzero(mask & textless)
        require(not len(wrong), "tokens without text are allowed", got=wrong.tolist(), **self.facts())
        return mask

    def back(self, n: int) -> None:
        """Undo ``n`` tokens; the mask must be what it was there."""
        self.matcher.rollback(n)
        del self.tokens[len(self.tokens) - n :]
        want = self.masks[len(self.tokens)]
        require(np.array_equal(mask_of(self.matcher), want), "rollback does not restore the mask", n=n, **self.facts())
        require_equal(self.matcher.finished(), False, "rollback does not restore finished", n=n, **self.facts())
        del self.masks[len(self.tokens) + 1 :]


def look_around(walk: Walk, mask: Any, tokens: Any) -> None:
    """Mask and ``accept`` say the same of each of ``tokens``, and neither changes anything."""
    for token in tokens:
        taken = walk.matcher.accept(int(token))
        require(isinstance(taken, bool | np.bool_), "accept returned no bool", got=repr(taken))
        if bool(taken) != bool(mask[token]):
            fail(
                "accept and mask contradict each other",
                token=int(token),
                accept=bool(taken),
                mask=bool(mask[token]),
                **walk.facts(),
            )
        if taken:
            walk.matcher.rollback(1)
    require(
        np.array_equal(mask_of(walk.matcher), mask), "accept and rollback(1), or a refused token, left a trace",
        **walk.facts(),
    )  # fmt: skip


def random_walk(grammar: Any, name: str, rng: random.Random, *, limit: int = 80, look: int = 6) -> Walk:
    """Walk until an end token or ``limit`` tokens, looking around at every place and rolling back now and then."""
    walk, end, undone = Walk(grammar.matcher(), name), end_token(), 0
    while len(walk.tokens) < limit:
        mask = walk.allowed()
        if len(walk.masks) == len(walk.tokens):
            walk.masks.append(mask)
        ids = np.flatnonzero(mask)
        require(len(ids) > 0, "a dead end: nothing is allowed, not even the end", **walk.facts())
        sample = [*rng.sample(ids.tolist(), min(look, len(ids))), *(rng.randrange(vocab_size()) for _ in range(look))]
        look_around(walk, mask, sample)
        if undone < 6 and walk.tokens and rng.random() < 0.25:
            undone += 1
            walk.back(rng.randint(1, min(5, len(walk.tokens))))
            continue
        token = _pick(ids.tolist(), rng, late=len(walk.tokens) > limit // 3)
        walk.take(token)
        if token == end:
            return walk
    return walk


def _pick(ids: list[int], rng: random.Random, *, late: bool) -> int:
    end, table = end_token(), tokenizer().token_bytes
    others = [token for token in ids if token != end]
    if end in ids and (late or not others or rng.random() < 0.25):
        return end
    if late:
        closing = [token for token in others if table[token][:1] in _CLOSING]
        if closing and rng.random() < 0.9:
            return rng.choice(closing)
    plain = [token for token in others if table[token].isalnum() and table[token].isascii()]
    return rng.choice(plain if plain and rng.random() < 0.6 else others)


def holds(grammar: Any, text: str) -> bool:
    """Whether ``text`` as a whole lies in the grammar, byte by byte."""
    matcher = grammar.matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and bool(mask_of(matcher)[end_token()])
