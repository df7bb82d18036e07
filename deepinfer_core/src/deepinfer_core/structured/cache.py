"""Compiled grammars by their text, the least recently used ones given up first."""

from __future__ import annotations

from collections import OrderedDict

from deepinfer_core.interfaces import Grammar

MAX_ENTRIES = 4096
ENTRY_BYTES = 1024
"""Counted for each entry beside its text and what the grammar says it holds."""
Key = tuple[str, str]
"""Schema type and schema."""


class GrammarCache:
    """At most ``max_bytes`` and ``max_entries``; 0 bytes keep nothing. Not safe for threads."""

    def __init__(self, max_bytes: int, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._items: OrderedDict[Key, tuple[Grammar, int]] = OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._items)

    def get(self, key: Key) -> Grammar | None:
        found = self._items.get(key)
        if found is None:
            return None
        self._items.move_to_end(key)
        return found[0]

    def put(self, key: Key, grammar: Grammar) -> None:
        """Keep ``grammar`` if it fits at all."""
        held = getattr(grammar, "nbytes", 0)
        size = ENTRY_BYTES + sum(map(len, key)) + (held if isinstance(held, int) and held > 0 else 0)
        self._drop(key)
        if size > self._max_bytes:
            return
        self._items[key] = (grammar, size)
        self.nbytes += size
        while self.nbytes > self._max_bytes or len(self._items) > self._max_entries:
            self._drop(next(iter(self._items)))

    def _drop(self, key: Key) -> None:
        found = self._items.pop(key, None)
        if found is not None:
            self.nbytes -= found[1]
