"""The user's turns: typed at a terminal, or lines of standard input."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator

from deepinfer_core.cli.lines import LineReader
from deepinfer_core.cli.state import text_of
from deepinfer_core.errors import InvalidInputFile
from deepinfer_core.requests.prompts import MAX_LINE_BYTES

PROMPT = "> "


class TypedTurns:
    """Lines that a person types. Ctrl-D ends them; Ctrl-C clears the line."""

    def __init__(self) -> None:
        with contextlib.suppress(ImportError):  # not everywhere; without it lines have no editing
            import readline  # noqa: F401  # input() edits lines once it is imported

    def __iter__(self) -> Iterator[str]:
        while True:
            try:
                line = self._line()
            except EOFError:
                sys.stderr.write("\n")
                return
            except KeyboardInterrupt:
                from deepinfer_core.interrupts import forget_interrupt

                forget_interrupt()
                sys.stderr.write("\ndeepinfer: Ctrl-D or /exit ends the chat\n")
                continue
            yield text_of(line)

    @staticmethod
    def _line() -> str:
        if sys.stdout.isatty():
            return input(PROMPT)
        sys.stderr.write(PROMPT)  # answers go to a file, and the prompt is none of them
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\r\n")


class PipedTurns:
    """Lines of standard input that is no terminal: each is a turn."""

    def __init__(self) -> None:
        self._lines: Iterable[bytes]
        try:
            self._lines = LineReader(sys.stdin.fileno())
        except OSError:  # a stream in memory
            self._lines = sys.stdin.buffer

    def __iter__(self) -> Iterator[str | InvalidInputFile]:
        """A line that cannot be read as a turn comes as its error; the next ones are read all the same."""
        for number, raw in enumerate(self._lines, 1):
            if len(raw) > MAX_LINE_BYTES + 1:
                yield InvalidInputFile(
                    f"line {number} is longer than {MAX_LINE_BYTES} bytes", remedy="say it in shorter lines"
                )
                continue
            try:
                yield raw.decode("utf-8").rstrip("\r\n")
            except UnicodeDecodeError as err:
                yield InvalidInputFile(
                    f"line {number} is not UTF-8 (byte {err.start})", remedy="convert the input to UTF-8"
                )
