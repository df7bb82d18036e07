"""Whether decode steps run in graphs, and why not."""

from __future__ import annotations

from typing import Any

from attrs import frozen


@frozen
class GraphChoice:
    """``on``, or the ``reason`` against it, as the plan of a run shows it."""

    on: bool
    reason: str = ""

    @property
    def line(self) -> str:
        return "decode steps run in graphs" if self.on else f"decode steps run op by op: {self.reason}"


def choose_graphs(wanted: bool, backend: Any, model: Any) -> GraphChoice:
    """What the setting ``graphs``, the backend and the model allow together."""
    if not hasattr(backend, "capture"):
        return GraphChoice(False, f"backend {backend.name!r} has no graphs")
    if not wanted:
        return GraphChoice(False, "graphs are switched off")
    if not getattr(model, "static_decode", False):
        return GraphChoice(False, "the model does not declare static_decode")
    return GraphChoice(True)
