"""Sets of characters as sorted ranges of code points, and the sets that a regular expression names by a letter."""

from __future__ import annotations

from collections.abc import Iterable

Ranges = tuple[tuple[int, int], ...]

# Surrogates are no characters: UTF-8 cannot carry them.
EVERYTHING: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same set with its ranges sorted and apart."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = (out[-1][0], max(high, out[-1][1]))
        else:
            out.append((low, high))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """Every character outside of ``ranges``."""
    out: list[tuple[int, int]] = []
    for low, high in EVERYTHING:
        start = low
        for first, last in merged(ranges):
            if last < start or first > high:
                continue
            if first > start:
                out.append((start, first - 1))
            start = last + 1
        if start <= high:
            out.append((start, high))
    return tuple(out)


def intersection(one: Ranges, other: Ranges) -> Ranges:
    """What lies in both."""
    return merged((max(a, c), min(b, d)) for a, b in merged(one) for c, d in merged(other) if max(a, c) <= min(b, d))


def chars(text: str) -> Ranges:
    """The set of the characters of ``text``."""
    return merged((ord(c), ord(c)) for c in text)


DIGIT: Ranges = ((0x30, 0x39),)
WORD: Ranges = merged((*DIGIT, (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A)))
SPACE: Ranges = chars(" \t\n\r\f\v")

# What some validator of schemas takes for a digit, a letter or white space. Readings differ outside of ASCII; an
# output has to satisfy each of them, so \D, \W and \S leave all of these out.
_DIGIT_ROWS = (
    0x660, 0x6F0, 0x7C0, 0x966, 0x9E6, 0xA66, 0xAE6, 0xB66, 0xBE6, 0xC66, 0xCE6, 0xD66, 0xDE6, 0xE50, 0xED0, 0xF20,
    0x1040, 0x1090, 0x17E0, 0x1810, 0x1946, 0x19D0, 0x1A80, 0x1A90, 0x1B50, 0x1BB0, 0x1C40, 0x1C50, 0xA620, 0xA8D0,
    0xA900, 0xA9D0, 0xA9F0, 0xAA50, 0xABF0, 0xFF10,
)  # fmt: skip
# The digits of the planes above the first are spread; none of those planes is needed where a digit is forbidden.
ANY_DIGIT: Ranges = merged((*DIGIT, *((row, row + 9) for row in _DIGIT_ROWS), (0x10000, 0x1FFFF)))
ANY_WORD: Ranges = merged((*WORD, (0x80, 0x10FFFF)))
ANY_SPACE: Ranges = merged(
    (*SPACE, (0x1C, 0x1F), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x180E, 0x180E), (0x2000, 0x200A),
     (0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF))
)  # fmt: skip

# Characters that stand for themselves between the quotes of a JSON string.
JSON_PLAIN: Ranges = complement(merged((*chars('"\\'), (0, 0x1F))))
