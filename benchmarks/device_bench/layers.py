"""One layer of each kind at the sizes of the released model, timed in a graph and held against its floors."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from kernel_bench.ceilings import Ceilings, measure_ceilings
from kernel_bench.harness import measure

from deepinfer_contracts import InputMetadataV41
from deepinfer_native.reference_pack import Geometry, Row, pack_decode, pack_prefill
from deepinfer_v41.cut_down import LEAST_LAYERS
from deepinfer_v41.floors import Work, floors
from device_bench.decode import memory, open_model
from device_bench.in_use import kernels_in_use
from device_bench.machine import machine

BLOCK, EXPERTS = 128, 384
LARGEST_BYTE = 0x78
"""Bytes below are finite numbers and small scales in every format of the caches."""


def geometry(config: Any, blocks: int) -> Geometry:
    ring = config.sliding_window + config.max_draft_tokens + 1
    return Geometry(
        block_size=BLOCK,
        window=config.sliding_window,
        swa_ring=ring,
        ratios_sparse=config.ratios,
        max_blocks=-(-blocks // 64) * 64,
        ngram=config.engram_max_ngram_size if config.engram_layer_ids else 0,
        ngram_table=np.arange(config.vocab_size, dtype=np.int32),
    )


def inputs(config: Any, work: Work) -> tuple[InputMetadataV41, int]:
    """The record of a step as the core packs it, and the blocks that it names."""
    each = -(-work.context // BLOCK)
    shape = geometry(config, each)
    if work.prefill:
        rows = [Row(range(work.context), 0, work.rows, list(range(1, each + 1)), 1, 1)]
        record, count = InputMetadataV41(**pack_prefill(rows, shape)), each
    else:
        tables = [list(range(1 + i * each, 1 + (i + 1) * each)) for i in range(work.rows)]
        tokens = range(work.context)
        rows = [Row(tokens, work.context - 1, 1, table, i + 1, i + 1) for i, table in enumerate(tables)]
        record, count = InputMetadataV41(**pack_decode(rows, shape)), each * work.rows
        record.block_tables = np.zeros((work.rows, shape.max_blocks), np.int32)
        record.block_tables[:, :each] = tables
        record.valid_token_mask = np.ones(work.rows, np.bool_)
    return record, count + 1


class Layers:
    """The cut-down model's blocks, and what one step of them needs."""

    def __init__(self, assembly: Any) -> None:
        self.backend, self.model, self.specs = assembly.backend, assembly.model, assembly.cache_specs
        self.config = self.model.config

    def kinds(self) -> dict[str, int]:
        """Name -> the first layer of that kind."""
        found: dict[str, int] = {}
        for plan in self.config.layers:
            if plan.is_draft:
                continue
            name = plan.kind.value + (f" r{plan.ratio}" if plan.ratio else "")
            name += " candidates" if plan.is_candidate_source else ""
            name += " engram" if plan.engram is not None else ""
            found.setdefault(name, plan.layer)
        return found

    @torch.inference_mode()
    def prepared(self, work: Work) -> Callable[[int], Callable[[], object]]:
        """Run all layers once, so that each finds what earlier ones leave it; gives the call of one layer."""
        record, blocks = inputs(self.config, work)
        slots = work.rows + 1 if not work.prefill else 2
        caches = self.backend.alloc_caches(self.specs, {"main": blocks, "index": blocks, "swa": slots, "state": slots})
        for arena in caches._arenas.values():
            arena.copy_(torch.randint(0, LARGEST_BYTE, arena.shape, dtype=torch.uint8, device=arena.device))
        step = self.model._step(self.backend.bind_inputs(record), caches)
        width, streams = self.config.hidden_size, self.config.hc_mult
        stream = torch.randn(work.rows, streams, width, device=self.backend.device).bfloat16()
        mix = torch.full((work.rows, streams), 1 / streams, device=self.backend.device)
        for block in self.model._blocks:
            block(stream, mix, step)

        def of(layer: int) -> Callable[[], object]:
            @torch.inference_mode()
            def call() -> object:
                return self.model._blocks[layer](stream, mix, step)

            return call

        return of


def run(args: Any, tell: Callable[[str], None] = print) -> dict[str, Any]:
    """All rows of ``benchmarks/layer.py``."""
    with kernels_in_use(args.backend, every=args.all_kernels) as idle:
        tell(f"kernels that do not serve: {', '.join(idle) or 'none'}")
        return _run(args, tell) | {"not_in_use": idle, "every_kernel": args.all_kernels}


def _run(args: Any, tell: Callable[[str], None]) -> dict[str, Any]:
    ceilings = measure_ceilings()
    tell(f"copy {ceilings.copy / 1e12:.2f} TB/s, bf16 {ceilings.bf16 / 1e12:.0f} TFLOP/s")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        assembly = open_model(
            Path(folder) / "model", LEAST_LAYERS, EXPERTS, backend=args.backend, max_model_len=args.context + 8192
        )
        tell(memory())
        try:
            layers = Layers(assembly)
            works = [Work(batch, args.context) for batch in args.batches]
            works += [Work(args.prefill, args.prefill, prefill=True)] if args.prefill else []
            for work in works:
                rows += _measured(layers, work, ceilings, tell)
                gc.collect()
        finally:
            assembly.close()
    return {
        "machine": machine(),
        "ceilings": {"copy_bytes_per_s": ceilings.copy, "bf16_flop_per_s": ceilings.bf16},
        "rows": rows,
    }


def _measured(layers: Layers, work: Work, ceilings: Ceilings, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    rows = []
    call_of = layers.prepared(work)
    for kind, layer in layers.kinds().items():
        parts = floors(layers.config, layers.config.layers[layer], work)
        least = sum(ceilings.floor_us(part.num_bytes, part.flop) for part in parts)
        timing = measure([call_of(layer)])
        rows.append(
            {
                "kind": kind,
                "phase": "prefill" if work.prefill else "decode",
                "rows": work.rows,
                "context": work.context,
                "us": round(timing.us, 1),
                "floor_us": round(least, 1),
                "share": round(least / timing.us, 3),
                "floors_us": {part.op: round(ceilings.floor_us(part.num_bytes, part.flop), 2) for part in parts},
            }
        )
        tell(
            f"{kind:26s} {'prefill' if work.prefill else 'decode'} {work.rows:5d} rows, context {work.context}: "
            f"{timing.us:9.1f} us, floors {least:9.1f} us, {least / timing.us:5.1%}"
        )
    return rows
