"""Texts that a grammar allows, drawn without a model: random walks over its masks, of several tempers."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

EOS = 256
PIECES = [
    b'{"', b'"}', b'":', b'": ', b'", "', b'","', b"},", b"]}", b"[]", b"{}", b" ", b"  ", b"\n", b"true", b"false",
    b"null", b"10", b"00", b"99", b"0.", b"-1", b"e+", b"E-", b"ab", b"abc", b"aa", b"xx", b"name", b"id", b"\\u",
    b"\\n", b'\\"', b"\\\\", "é".encode(), "日本".encode(), "я".encode(), "😀".encode(), "٣".encode(),
    "\u00a0".encode(), "\u2028".encode(), b"2024-", b"-02-", b"T1", b"@", b".c", b"://", b"aaaa",
]  # fmt: skip
CLOSING = (b'"', b"}", b"]", b")", b"/", b"<", b"\n")


@dataclass
class ByteTokenizer:
    """Every byte, an end token, pieces of several bytes, and two special tokens without text; ``size`` pads or cuts."""

    size: int = 257 + len(PIECES) + 2

    @property
    def vocab_size(self) -> int:
        return self.size

    @property
    def token_bytes(self) -> list[bytes]:
        table = [bytes([b]) for b in range(256)] + [b"", *PIECES]
        return (table + [b""] * self.size)[: self.size]

    @property
    def eos_ids(self) -> frozenset[int]:
        return frozenset({EOS})


def allowed(matcher, width: int) -> np.ndarray:
    """Ids that the matcher allows next, in order."""
    mask = np.zeros((width + 31) // 32, np.int32)
    matcher.fill(mask)
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))


@dataclass
class Walk:
    text: bytes
    tokens: list[int]
    finished: bool


def walk(grammar, tokenizer, rng: random.Random, *, limit: int = 512, temper: str = "mixed") -> Walk:
    """One answer of at most ``limit`` tokens.

    Tempers: ``mixed`` and ``wild`` draw from everything (``wild`` never ends before it must); ``long`` prefers what
    goes on; ``short`` ends as soon as it may. All of them prefer to close brackets once half of the limit is used.
    """
    matcher = grammar.matcher()
    table, width = tokenizer.token_bytes, tokenizer.size
    tokens: list[int] = []
    while len(tokens) < limit:
        ids = allowed(matcher, width)
        if not len(ids):
            raise RuntimeError(f"dead end behind {b''.join(table[t] for t in tokens)!r}")
        late = len(tokens) > limit // 4
        token = _pick(ids, table, rng, temper, late)
        if not matcher.accept(int(token)):
            raise RuntimeError(f"token {token} is in the mask and not accepted behind {tokens}")
        if token in tokenizer.eos_ids:
            return Walk(b"".join(table[t] for t in tokens), tokens, True)
        tokens.append(int(token))
    return Walk(b"".join(table[t] for t in tokens), tokens, False)


def _pick(ids: np.ndarray, table: list[bytes], rng: random.Random, temper: str, late: bool) -> int:
    if EOS in ids and (late or temper == "short" or rng.random() < (0.02 if temper in ("wild", "long") else 0.3)):
        return EOS
    others = [int(i) for i in ids if i != EOS]
    if not others:
        return EOS
    if late or temper == "short":
        closing = [i for i in others if table[i][:1] in CLOSING] or [i for i in others if len(table[i]) > 1]
        if closing and rng.random() < 0.9:
            return closing[rng.randrange(len(closing))]
    if temper == "wild":
        return others[rng.randrange(len(others))]
    if temper == "long":
        going = [i for i in others if table[i][:1].isalnum() or table[i][:1] in (b"-", b".", b",")]
        if going:
            return going[rng.randrange(len(going))]
    plain = [i for i in others if table[i].isascii() and table[i].isalnum()] or others
    pool = others if rng.random() < 0.4 else plain
    return pool[rng.randrange(len(pool))]


def holds(grammar, tokenizer, text: str) -> bool:
    """Whether ``text`` as a whole lies in the grammar."""
    matcher = grammar.matcher()
    return all(matcher.accept(b) for b in text.encode()) and EOS in allowed(matcher, tokenizer.size)
