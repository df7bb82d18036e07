"""What ``--emulate`` runs for each op: ``python -m deepinfer_ascend.coverage`` prints the table of ``ascend.md``.

*Equivalent*: a vendor's kernel is bound, and its equivalent computes. *Lowered*: a kernel of ours, lowered to AscendC,
is executed where ``DEEPINFER_ASCEND_LOWERED`` asks for it, and compared with the plain op in tests. *Own code*: it
needs no kernel. *Not covered*: the plain op of ``cpu`` computes, which says nothing of any kernel of the device.

The plan of a backend follows the same table (:func:`served`): what is not covered is told there as ``deepinfer-cpu``'s.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from deepinfer_ascend.vendor.table import TABLE

EQUIVALENT, LOWERED, OWN, NOT_COVERED = "equivalent", "lowered", "own code", "not covered"
OWN_CODE = {
    "attn.plan": "an object, which a step's handle is made beside",
    "cache.alloc": "the core's arenas, in memory of torch",
    "cache.view": "the core's arenas, in memory of torch",
    "quant.dequantize": "codes and scale words, read by operators of torch",
}
"""Ops that need no kernel, and what they do."""
KERNELS = {
    "cache.load_segments": "`load_runs`, `load_numbers`, `load_codes`; every format but `index_fp8`",
    "cache.store": "`store_entries`, `store_numbers`: bf16 rows, every format but `index_fp8`",
    "compress.decode": "`ring_step`, `compress_step`",
    "compress.prefill": "`compress_chunk`, `ring_chunk`, with the sequence of each entry given",
    "compress.state_copy": "`ring_copy`",
    "engram.fetch": "`table_values`, quantised tables",
    "engram.gate": "`gated_rows`",
    "engram.hash": "`hashed_rows`, int32 ids",
    "index.block_max": "`block_max_rows`",
    "index.restore": "`restored_rows`",
    "index.topk": "`topk_rows`, fp32 scores and whoever wants values",
    "meta.block_tables": "`picked_rows`",
    "meta.compressed_index": "`run_indices`, `table_rows`",
    "meta.correct_lengths": "`corrected_ends`",
    "meta.decode_metadata": "`request_rows`, `ratio_rows`",
    "meta.draft_inputs": "`draft_rows`",
    "meta.feed_tokens": "`feed_rows`",
    "meta.gather_rows": "`gather_rows` of bf16, `picked_rows` of words of 4 bytes",
    "meta.index_cat": "`joined_rows`",
    "meta.logical_to_slot": "`slot_rows`",
    "meta.verify_lengths": "`verified_lengths`, at most 8,192 drafts",
    "meta.window_index_decode": "`ring_indices`",
    "meta.window_index_prefill": "`window_rows`",
    "mhc.expand": "`expand_rows`",
    "mhc.head": "`collapse_rows`",
    "mhc.post": "`post_rows`",
    "mhc.pre": "`mix_coefficients`, `collapse_rows`; the products by the plain op",
    "moe.combine": "`combine_rows`",
    "moe.swiglu": "`swiglu_rows`, and `cast_rows` behind it",
    "norm.rms": "`rms_rows`, and `cast_rows` behind it",
    "quant.cast_per_token": "`cast_rows`, E4M3 and E2M1 in groups of 32, E2M1 in groups of 16",
    "transform.fused": "`rms_rows`, `rotary_rows`, `cast_rows` and `store_entries`",
    "sample.draw": "`draw_rows`",
    "sample.logprobs": "`logprob_rows`",
    "sample.mask": "`mask_rows`",
    "transform.rotary": "`rotary_rows`",
}
"""Ops that lowered kernels serve, and which."""
WITHOUT_KERNEL = {
    "engram.prepare": "at load",
    "engram.prepare_gate": "at load",
    "mhc.prepare": "at load",
    "moe.dispatch": "a sort of the library, and rows by number",
    "sample.verify": "the canonical sampler draws from distributions of its own",
    "transform.hadamard": "no layer of the model has it",
    "transform.rope_rows": "rows of a table, once a step",
    "transform.rope_table": "at load",
}
"""Why an op has no kernel of anyone."""
SIZES = {
    "attn.sparse_decode": "heads of 512 values, caches `v41` and `v41_fp4`",
    "attn.sparse_prefill": "heads of 512 values",
    "engram.gate": "bf16, four streams, hidden size a multiple of 128",
    "gemm.dense": "bf16 with bf16; FP8 with FP8 or FP4, inputs a multiple of 128",
    "gemm.einsum_heads": "FP8 with FP8, inputs a multiple of 128",
    "gemm.grouped": "FP8 with FP8 or FP4, inputs a multiple of 128, a result of bf16",
    "index.logits": "FP4 keys of 128 values, 32 or 64 heads, no candidates",
    "index.topk": "bf16 scores",
    "mhc.expand": "bf16, hidden size a multiple of 128",
    "mhc.head": "bf16, hidden size a multiple of 128",
    "mhc.post": "bf16, hidden size a multiple of 128",
    "moe.experts": "FP8 rows with FP8 or FP4 weights, inputs a multiple of 128",
    "moe.gate": "temperature 1",
    "quant.cast_per_token": "bf16, UE8M0 scales of 32 values, a multiple of 64 columns",
    "quant.prepare_weight": "FP8, FP4 and bf16",
}
"""What the kernel takes; other arguments go to the plain op."""


def coverage() -> Iterator[tuple[str, str, str]]:
    """Of each op in the table of ops: its id, how it is run, and by what."""
    from deepinfer_contracts import OPS

    symbols: dict[str, list[str]] = {}
    for name, symbol in TABLE.items():
        for op in symbol.ops:
            symbols.setdefault(op, []).append(f"`{name}`")
    for op in sorted(OPS):
        found = [(EQUIVALENT, f"{', '.join(symbols[op])}: {SIZES[op]}")] if op in SIZES else []
        found += [(LOWERED, KERNELS[op])] if op in KERNELS else []
        found += [(OWN, OWN_CODE[op])] if op in OWN_CODE else []
        if found:
            yield op, ", ".join(how for how, _ in found), "; ".join(by for _, by in found)
        elif OPS[op].default or OPS[op].required:
            yield op, NOT_COVERED, f"the plain op of `cpu`: {WITHOUT_KERNEL[op]}"


def served(*, lowered: bool = False) -> frozenset[str]:
    """Ops that this backend computes itself for the arguments that the table tells: by a library's kernel or, where
    libraries are emulated, by its equivalent; by code of its own; with ``lowered`` by kernels of its own as well."""
    bound = {op for symbol in TABLE.values() for op in symbol.ops}
    return frozenset(bound | OWN_CODE.keys() | (KERNELS.keys() if lowered else set()))


def page_table() -> str:
    """The table as Markdown."""
    rows = [f"| `{op}` | {how} | {by} |" for op, how, by in coverage()]
    return "\n".join(["| op | under `--emulate` | by, and for what |", "| --- | --- | --- |", *rows])


if __name__ == "__main__":
    sys.stdout.write(page_table() + "\n")
