"""Decode steps of the cut-down model through the whole engine: time of a step, and how long the device is idle in it.

One set of weights serves all engines; an engine is made for each way to run (graphs on or off, two steps in flight or
one), and each is closed before the next. All ways are timed before the first is profiled: a profiler that was in use
once makes every launch of the process dearer.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import torch

from deepinfer_bench.busy import Busy, profiled
from deepinfer_core import LLM, SamplingParams
from deepinfer_core.assembly.assemble import Assembly, assemble
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import DeepInferError
from deepinfer_v41.config import V41Config
from deepinfer_v41.cut_down import LEAST_LAYERS, cut_down, write_model
from deepinfer_v41.weights.table import tensor_table
from device_bench.in_use import kernels_in_use
from device_bench.machine import machine

RESERVED_BYTES = 24 << 30
"""Left for caches, activations, graphs and what kernels need beside the weights as stored."""
WHOLE_MODEL = 40
SETTLING = 6
"""Decode steps before the first that counts: graphs are recorded, and clocks rise."""


class Shared:
    """The parts of an assembly with other settings; closing an engine leaves them open."""

    def __init__(self, assembly: Assembly, **changes: Any) -> None:
        self._assembly = assembly
        self.config = attrs.evolve(assembly.config, **changes)

    def __getattr__(self, name: str) -> Any:
        if name == "close":
            raise AttributeError(name)
        return getattr(self._assembly, name)


def open_most(folder: Path, experts: int, tell: Callable[[str], None], **settings: Any) -> tuple[Assembly, int]:
    """The cut-down model with as many layers as the device holds, and how many: by the bytes of its weights as stored,
    and fewer where the backend needs more for them."""
    layers = most_layers(experts, torch.cuda.mem_get_info()[0] - RESERVED_BYTES)
    while True:
        try:
            return open_model(folder, layers, experts, **settings), layers
        except (DeepInferError, torch.cuda.OutOfMemoryError) as exc:
            if layers == LEAST_LAYERS or "memory" not in f"{exc} {exc.__cause__}".lower():
                raise
        gc.collect()
        torch.cuda.empty_cache()
        tell(f"{layers} layers do not fit")
        layers = max(LEAST_LAYERS, int(layers * 0.75))


def most_layers(experts: int, num_bytes: int) -> int:
    """Layers whose stored weights, draft stages included, take at most ``num_bytes``."""
    least = _stored_bytes(LEAST_LAYERS, experts)
    each = _stored_bytes(LEAST_LAYERS + 1, experts) - least
    return min(WHOLE_MODEL, LEAST_LAYERS + max(0, num_bytes - least) // each)


def _stored_bytes(layers: int, experts: int) -> int:
    config = V41Config.from_dict(cut_down(layers, n_routed_experts=experts))
    return sum(spec.nbytes for spec in tensor_table(config).values())


def open_model(folder: Path, layers: int, experts: int = 384, **settings: Any) -> Assembly:
    """The cut-down model on random weights."""
    write_model(folder, cut_down(layers, n_routed_experts=experts))
    given = {"model": str(folder), "load_format": "dummy", **settings}
    return assemble(EngineConfig.resolve(given, environ={}, flag_origin="argument"), announce=None)


def prompts(batch: int, context: int, vocab: int) -> list[list[int]]:
    draw = torch.Generator().manual_seed(batch * 4099 + context)
    return torch.randint(3, vocab, (batch, context), generator=draw).tolist()  # type: ignore[no-any-return]


class Steps:
    """The token streams of one batch; :meth:`advance` runs until every request has that many more tokens."""

    def __init__(self, llm: LLM, ids: Sequence[Sequence[int]], tokens: int) -> None:
        params = SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)
        self._chunks = llm.stream([list(one) for one in ids], params)
        self._times = llm.times
        self._have = [0] * len(ids)

    def advance(self, tokens: int) -> tuple[float, int]:
        """(seconds, steps committed)."""
        goal = min(self._have) + tokens
        steps, begin = self._times.steps, time.perf_counter()
        while min(self._have) < goal:
            chunk = next(self._chunks)
            self._have[chunk.index] += len(chunk.token_ids)
            if chunk.output is not None and chunk.output.error is not None:
                raise SystemExit(f"request {chunk.index} failed: {chunk.output.error}")
        return time.perf_counter() - begin, self._times.steps - steps

    def close(self) -> None:
        self._chunks.close()


def measure(
    llm: LLM, batch: int, context: int, tokens: int, drafts: int, tell: Callable[[str], None] = print
) -> dict[str, Any]:
    """One batch: prefill, a few steps to settle, twice ``tokens`` timed ones."""
    each = 1 if not drafts else drafts + 1
    total = (SETTLING + 2 * tokens) * each + 8
    steps = Steps(llm, prompts(batch, context, 100_000), total)
    begin = time.perf_counter()
    steps.advance(1)
    prefill = time.perf_counter() - begin
    settling, count = steps.advance(SETTLING)
    tell(f"batch {batch}: prefill {prefill * 1e3:.0f} ms, then {count} steps in {settling * 1e3:.0f} ms")
    before = llm.times.as_record()
    walls = [steps.advance(tokens) for _ in range(2)]
    after = llm.times.as_record()
    wall = statistics.median(seconds / max(1, count) for seconds, count in walls)
    steps.close()
    committed = after["steps"] - before["steps"]
    phases = {k: round((after[k] - before[k]) / committed / 1e3, 1) for k in after if k not in _NO_TIMES}
    return {
        "batch": batch,
        "context": context,
        "step_us": round(wall * 1e6, 1),
        "tokens_per_s": round(batch * tokens * 2 / sum(s for s, _ in walls), 1),
        "prefill_ms": round(prefill * 1e3, 1),
        "host_us_per_step": phases,
    }


def profile(llm: LLM, row: dict[str, Any], tokens: int, drafts: int) -> dict[str, Any]:
    """``row`` of :func:`measure` with what the profiler sees of ``tokens`` steps more of such a batch."""
    total = (SETTLING + tokens) * (drafts + 1) + 8
    steps = Steps(llm, prompts(row["batch"], row["context"], 100_000), total)
    steps.advance(1 + SETTLING)
    seen: list[tuple[float, int]] = []
    busy: Busy = profiled(lambda: seen.append(steps.advance(tokens)))
    steps.close()
    count = max(1, seen[0][1])
    busy_us = busy.busy_us / count
    return row | {
        "device_busy_us": round(busy_us, 1),
        "idle_share": round(max(0.0, 1 - busy_us / row["step_us"]), 4),
        "idle_share_profiled": round(busy.idle, 4),
        "launches_per_step": round(busy.kernels / count),
        "longest_kernels": busy.top,
    }


_NO_TIMES = ("steps", "overlapped_steps", "prefill_tokens", "decode_tokens")


def run(args: Any, keep: Callable[[dict[str, Any]], None], tell: Callable[[str], None] = print) -> None:
    """All rows of the options of ``benchmarks/decode.py --cut-down``; ``keep`` gets the report so far behind each way
    to run."""
    with kernels_in_use(args.backend, every=args.all_kernels) as idle:
        tell(f"kernels that do not serve: {', '.join(idle) or 'none'}")
        known = {"not_in_use": idle, "every_kernel": args.all_kernels}
        _run(args, lambda report: keep(report | known), tell)


def _run(args: Any, keep: Callable[[dict[str, Any]], None], tell: Callable[[str], None]) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        where = Path(folder) / "model"
        settings = {
            "backend": args.backend,
            "draft_tokens": args.drafts,
            "verify": "coupled",
            "max_num_seqs": max(args.batches),
            "max_model_len": max(args.contexts) + 4096,
            "kv_memory": args.kv_memory,
            "numeric_mode": args.mode,
        }
        layers = args.layers
        if layers:
            assembly = open_model(where, layers, args.experts, **settings)
        else:
            assembly, layers = open_most(where, args.experts, tell, **settings)
        tell(f"{layers} layers made in {time.perf_counter() - begin:.1f} s: {memory()}")
        try:
            ways = list(itertools.product(_both(args.graphs), _both(args.overlap)))
            timed = [_one_way(Shared(assembly, graphs=g, overlap=o), args, g, o, tell) for g, o in ways]
            for (g, o), found in zip(ways, timed, strict=True):
                rows += _profiled_way(Shared(assembly, graphs=g, overlap=o), args, found, tell)
                sizes = {"layers": layers, "experts": args.experts, "drafts": args.drafts}
                keep({"machine": machine(), **sizes, "rows": [*rows]})
        finally:
            assembly.close()


def _one_way(parts: Any, args: Any, graphs: bool, overlap: bool, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    llm = LLM.from_assembly(parts)
    try:
        for batch, context in itertools.product(args.batches, args.contexts):
            row = measure(llm, batch, context, args.tokens, args.drafts, tell)
            rows.append({"graphs": graphs, "overlap": overlap, **row})
            tell(
                f"{_way(rows[-1])} step {row['step_us']:9.1f} us  "
                f"host {sum(us for name, us in row['host_us_per_step'].items() if name != 'wait'):.0f} us"
            )
        made = llm.built.engine.graphs
        if made is not None:
            tell(f"{made.num_recorded} graphs recorded, {made.num_launched} launches; {memory()}")
    finally:
        llm.close()
        del llm
        gc.collect()
    return rows


def _profiled_way(
    parts: Any, args: Any, rows: list[dict[str, Any]], tell: Callable[[str], None]
) -> list[dict[str, Any]]:
    found = []
    llm = LLM.from_assembly(parts)
    try:
        for timed in rows:
            row = profile(llm, timed, args.tokens, args.drafts)
            found.append(row)
            tell(
                f"{_way(row)} step {row['step_us']:9.1f} us  busy {row['device_busy_us']:9.1f} us  "
                f"idle {row['idle_share']:6.1%} (profiled {row['idle_share_profiled']:6.1%})  "
                f"{row['launches_per_step']} launches"
            )
    finally:
        llm.close()
        del llm
        gc.collect()
    return found


def _way(row: dict[str, Any]) -> str:
    ways = f"graphs {'on ' if row['graphs'] else 'off'} overlap {'on ' if row['overlap'] else 'off'}"
    return f"{ways} batch {row['batch']:4d}"


def memory() -> str:
    if not torch.cuda.is_available():
        return "no device"
    free, total = torch.cuda.mem_get_info()
    return f"{(total - free) / 1e9:.1f} of {total / 1e9:.1f} GB in use"


def _both(choice: str) -> tuple[bool, ...]:
    return (True, False) if choice == "both" else (choice == "on",)
