"""Prefix hash chains: h[0] = H(record name, major), h[i] = H(h[i-1], name:type:count of field i).

H is the first 8 bytes of SHA-256, read as a big-endian integer so that its hexadecimal text is the digest's text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def link(previous: bytes, text: str) -> bytes:
    return hashlib.sha256(previous + text.encode()).digest()[:8]


def split(definition: str) -> tuple[str, str]:
    """'i32[N]' -> ('i32', '[N]'); 'i32/ratio' -> ('i32', '/ratio')."""
    for i, c in enumerate(definition):
        if c in "[/":
            return definition[:i], definition[i:]
    return definition, ""


def chain_of(record: str, major: int, links: Iterable[tuple[str, str]]) -> list[int]:
    """One hash more than there are fields."""
    h = link(b"", f"{record}:{major}")
    out = [int.from_bytes(h, "big")]
    for name, definition in links:
        dtype, count = split(definition)
        h = link(h, f"{name}:{dtype}:{count}")
        out.append(int.from_bytes(h, "big"))
    return out
