"""The tokenizer that grammars are compiled for: every byte, pieces of several bytes, special tokens; made in memory."""

from __future__ import annotations

import functools
from typing import Any

from deepinfer_core.text.tokenizer import Tokenizer

PIECES = (
    '{"', '"}', '":', '": ', '", "', '","', "},", "]}", "[]", "{}", "  ", "true", "false", "null", "10", "99", "0.",
    "-1", "e+", "ab", "abc", "aab", "name", "id", "\\n", '\\"', "é", "日本", "😀", "2024-", "a b", "yes", "no",
)  # fmt: skip
PADDING = 5
"""Ids of the logits beyond the tokenizer: they have no text, and leave the last word of a mask incomplete."""


@functools.cache
def tokenizer() -> Tokenizer:
    """All bytes (ids 0 to 255), the pieces and what they are merged from, two special tokens and an end token."""
    from tokenizers import AddedToken, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    letters = _letters()
    vocab = {letter: byte for byte, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    for piece in PIECES:
        symbols = [letters[byte] for byte in piece.encode()]
        word = symbols[0]
        for symbol in symbols[1:]:
            if (word, symbol) not in merges:
                merges.append((word, symbol))
            word += symbol
            vocab.setdefault(word, len(vocab))
    library = Library(models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True) for text in ("<bos>", "<eos>", "<mark>")])
    eos: Any = library.token_to_id("<eos>")
    return Tokenizer(library, bos_id=library.token_to_id("<bos>"), add_bos=True, eos_ids=frozenset({eos}))


def vocab_size() -> int:
    """Width of the masks in tokens."""
    return tokenizer().vocab_size + PADDING


def end_token() -> int:
    """The one end token."""
    (only,) = tokenizer().eos_ids
    return only


def text_of(tokens: list[int]) -> bytes:
    """What the tokens spell."""
    table = tokenizer().token_bytes
    return b"".join(table[token] for token in tokens if token < len(table))


def _letters() -> list[str]:
    """The printable stand-in of each byte in a byte-level vocabulary."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in shown else chr(next(others)) for byte in range(0x100)]
