"""A backend that notes what its ops answered, and ops with one rule turned round, for tests of a model.

The model takes its ops when it is made, so it must be made with the recording backend.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


class _Group:
    def __init__(self, group: Any, replaced: Mapping[str, Callable[..., Any]]) -> None:
        self._group, self._replaced = group, replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._group, name)


class PatchedBackend:
    """``backend`` with some ops replaced: ``{"index.topk": wrapper}``, ``wrapper(original) -> op``."""

    def __init__(self, backend: Any, wrappers: Mapping[str, Callable[[Any], Callable[..., Any]]]) -> None:
        self._backend = backend
        self._groups: dict[str, dict[str, Callable[..., Any]]] = {}
        for op, wrapper in wrappers.items():
            group, name = op.split(".")
            original = getattr(getattr(backend, group), name)
            self._groups.setdefault(group, {})[name] = wrapper(original)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._backend, name)
        return _Group(found, self._groups[name]) if name in self._groups else found


def higher_ties(topk: Any) -> Callable[..., Any]:
    """``index.topk`` as the golden values' implementation breaks ties: the higher position wins."""

    def op(scores: Tensor, k: int, *, end: Tensor, offset: Tensor | None = None, **options: Any) -> Tensor:
        width = scores.shape[1]
        columns = torch.arange(width, device=scores.device)
        s = scores.masked_fill((columns[None] >= end[:, None]) | torch.isinf(scores) & (scores < 0), float("-inf"))
        order = width - 1 - torch.sort(s.flip(1), dim=1, descending=True, stable=True).indices[:, :k]
        kept = torch.where(s.gather(1, order) > float("-inf"), order, width).sort(1).values
        out = torch.full((len(scores), k), -1, dtype=torch.int32, device=scores.device)
        out[:, : kept.shape[1]] = torch.where(kept < width, kept, -1).int()
        return out if offset is None else torch.where(out >= 0, out + offset[:, None], out)

    return op


class Recorder:
    """Selections, experts, table rows and streams of every step, by the labels of the golden manifest.

    One sequence at a time: rows of consecutive steps are joined.
    """

    def __init__(self, backend: Any, config: Any, extra: Mapping[str, Callable[[Any], Any]] | None = None) -> None:
        self._selections: list[str] = []
        for plan in config.layers:
            if plan.has_indexer:
                self._selections += [f"candidates.{plan.layer}"] if plan.is_candidate_source else []
                self._selections.append(f"topk.{plan.layer}")
        self._layers, self._engram_layers = config.num_hidden_layers, list(config.engram_layer_ids)
        self.calls: dict[str, list[Any]] = {}
        extra = dict(extra or {})
        choose = extra.pop("index.topk", lambda f: f)
        wrappers: dict[str, Callable[[Any], Callable[..., Any]]] = {
            "index.topk": lambda f: self._note("select", choose(f)),
            "moe.gate": lambda f: self._note("gate", f),
            "engram.hash": lambda f: self._note("hash", f),
            "mhc.pre": self._note_stream,
            "mhc.head": self._note_stream,
            "engram.gate": self._note_before_engram,
            "transform.fused": self._note_window,
            **extra,
        }
        self.backend = PatchedBackend(backend, wrappers)

    def _note(self, name: str, f: Any) -> Callable[..., Any]:
        def op(*args: Any, **options: Any) -> Any:
            out = f(*args, **options)
            self.calls.setdefault(name, []).append((out[0] if isinstance(out, tuple) else out).cpu())
            return out

        return op

    def _note_stream(self, f: Any) -> Callable[..., Any]:
        def op(stream: Tensor, *args: Any, **options: Any) -> Any:
            self.calls.setdefault("stream", []).append(stream.cpu())
            return f(stream, *args, **options)

        return op

    def _note_before_engram(self, f: Any) -> Callable[..., Any]:
        def op(stream: Tensor, *args: Any, **options: Any) -> Any:
            self.calls.setdefault("before_engram", []).append(stream.cpu())
            return f(stream, *args, **options)

        return op

    def _note_window(self, f: Any) -> Callable[..., Any]:
        def op(*args: Any, **options: Any) -> Any:
            out = f(*args, **options)
            if options.get("copy_stage") == "cast_back":
                self.calls.setdefault("window", []).append(out[1].cpu())
            if options.get("cast") is not None:
                self.calls.setdefault("query", []).append(out.values.cpu())
            return out

        return op

    def clear(self) -> None:
        self.calls.clear()

    def _joined(self, name: str, period: int, place: int) -> Tensor:
        return torch.cat(self.calls[name][place::period])

    def selections(self) -> dict[str, Tensor]:
        """``topk.L`` i32 ``[T, K]`` and ``candidates.L`` i32 ``[T, blocks]``."""
        period = len(self._selections)
        return {label: self._joined("select", period, i) for i, label in enumerate(self._selections)}

    def experts(self) -> Tensor:
        """``[layers, T, k]`` ascending ids."""
        return torch.stack([self._joined("gate", self._layers, i).sort(-1).values for i in range(self._layers)])

    def hashes(self) -> Tensor:
        """``[T, engram layers, columns]``."""
        count = len(self._engram_layers)
        return torch.stack([self._joined("hash", count, i) for i in range(count)], 1)

    def stream_norms(self) -> Tensor:
        """``[layers + 1, T, streams]``: before each layer (its Engram included), and after the last."""
        period = 2 * self._layers + 1
        joined = [self._joined("stream", period, 2 * layer) for layer in range(self._layers + 1)]
        for i, layer in enumerate(self._engram_layers):
            joined[layer] = self._joined("before_engram", len(self._engram_layers), i)
        return torch.stack([stream.float().norm(dim=-1) for stream in joined])
