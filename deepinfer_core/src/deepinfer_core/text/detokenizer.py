"""Token ids to text, one token at a time, for one answer.

* The pieces, joined, are the text that decoding all bytes in one go gives.
* A character is never cut: bytes of an incomplete one wait for the next token. A sequence that is truly broken gives
  one replacement sign, as ``bytes.decode("utf-8", "replace")`` does.
* Special tokens have no text, except the one that ends the answer when the caller wants to see it.
* The prompt is never part of the text. Only if a prompt of token ids ends in the middle of a character and the answer
  goes on with its remaining bytes, that one character, now complete, belongs to the answer.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from deepinfer_core.text.stops import StopScanner

_Utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """Text of one answer.

    :param table: Bytes of each token id; empty for special tokens (``Tokenizer.token_bytes``).
    :param stops: Stop strings.
    :param min_tokens: Stop strings count only in text that comes after this many tokens.
    :param include_stop: Keep the stop string in the text.
    :param stops_between: Tokens between which stop strings count: from the first (None: from the start) to the second
        (None: to the end). In a chat, reasoning and tool calls end at no stop string.
    :param prompt_tail: Bytes of an incomplete character at the end of the prompt (:func:`incomplete_tail`).
    """

    __slots__ = (
        "_closing",
        "_decoder",
        "_include",
        "_is_open",
        "_min",
        "_n",
        "_opening",
        "_pieces",
        "_scanner",
        "_table",
        "_tail",
        "_taken",
        "_todo",
        "stop",
    )

    def __init__(
        self,
        table: Sequence[bytes],
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        stops_between: tuple[int | None, int | None] = (None, None),
        prompt_tail: bytes = b"",
    ) -> None:
        self._table = table
        self._opening, self._closing = stops_between
        self._is_open = self._opening is None
        self._decoder = _Utf8("replace")
        self._scanner = StopScanner(stops) if stops else None
        self._min = min_tokens
        self._include = include_stop
        self._tail = prompt_tail
        self._n = 0
        self._todo: list[int] = []  # tokens whose text nobody has asked for yet
        self._pieces: list[str] = []
        self._taken = 0
        self.stop: str | None = None
        """The stop string that ended the text."""

    def push(self, token_id: int) -> bool:
        """Add a token. True if a stop string is complete: this token is the last."""
        if self._scanner is None:
            self._todo.append(token_id)  # decoded together with others, when the text is wanted
            return False
        self._n += 1
        text = self._decoded(token_id)
        if token_id in (self._opening, self._closing):
            self._is_open = token_id == self._opening
            self._keep(self._scanner.flush())
            self._keep(text)
            return False
        if self._n <= self._min or not self._is_open:
            self._keep(text)
            return False
        released, self.stop = self._scanner.feed(text)
        self._keep(released)
        if self.stop is None:
            return False
        if self._include:
            self._keep(self.stop)
        return True

    def finish(self, stop_text: bytes = b"") -> None:
        """No more tokens come. ``stop_text``: bytes of the token that ended the answer, if they are wanted."""
        if self.stop is not None:
            return
        self._catch_up()
        # No stop string is looked for here: the answer has ended already.
        rest = self._decoder.decode(self._joined(stop_text), True)
        held = self._scanner.flush() if self._scanner is not None else ""
        self._keep(held + rest)

    def take(self) -> str:
        """The text that came since the last call."""
        self._catch_up()
        new = self._pieces[self._taken :]
        self._taken = len(self._pieces)
        return "".join(new)

    @property
    def text(self) -> str:
        """All text so far, without what is held back."""
        self._catch_up()
        return "".join(self._pieces)

    def _catch_up(self) -> None:
        if self._todo:
            todo, self._todo = self._todo, []
            self._keep(self._decoded(*todo))

    def _decoded(self, *token_ids: int) -> str:
        table = self._table
        return self._decoder.decode(self._joined(b"".join(table[i] for i in token_ids if i < len(table))))

    def _keep(self, text: str) -> None:
        if text:
            self._pieces.append(text)

    def _joined(self, data: bytes) -> bytes:
        """The first bytes of the answer complete the prompt's last character, if they can."""
        if self._tail and data:
            tail, self._tail = self._tail, b""
            if 0x80 <= data[0] <= 0xBF:
                return tail + data
        return data


def incomplete_tail(data: bytes) -> bytes:
    """Bytes at the end of ``data`` that begin a UTF-8 character and do not finish it."""
    for size in range(1, min(4, len(data)) + 1):
        if data[-size] >= 0xC0:  # a leading byte
            decoder = _Utf8("replace")
            decoder.decode(data[-size:])
            return decoder.getstate()[0]
    return b""
