"""Recording the graphs of all sizes before the first request, and what a person sees of it."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TextIO

from deepinfer_core.graphs.decode import DecodeGraphs

WIDTH = 30


class ProgressBar:
    """One line that is written over, on a terminal; nothing elsewhere."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = sys.stderr if stream is None else stream
        self._is_shown = self._stream.isatty()

    def tell(self, done: int, total: int) -> None:
        if not self._is_shown:
            return
        filled = WIDTH * done // total
        end = "\r\033[K" if done == total else ""
        self._stream.write(f"\r{self._what} [{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total}{end}")
        self._stream.flush()


def record_graphs(graphs: DecodeGraphs, stream: TextIO | None = None) -> str:
    """Record every size, with a progress bar; returns a line that says what was done.

    :raises GraphCaptureError: a step cannot be recorded; names ``--no-graphs``.
    """
    start = perf_counter()
    graphs.record_all(ProgressBar("recording decode graphs", stream).tell)
    sizes = graphs.sizes
    return f"{len(sizes)} decode graphs, {sizes[0]} to {sizes[-1]} rows, recorded in {perf_counter() - start:.1f} s"
