"""The step of a rank that has nothing to run while its group steps (``spec/engine.md`` 5.9).

One request of one token at position 0, over the null block and the null slots, which are never handed out: kernels may
write there. The record keeps a rank's forward in step with collectives of the others; nothing of it is committed. Graph
padding uses the same row.
"""

from __future__ import annotations

import numpy as np

from deepinfer_contracts import InputMetadata, InputMetadataV41, ReplayMode, StepKind
from deepinfer_native.config import CoreConfig
from deepinfer_native.errors import ArgumentError
from deepinfer_native.reference_pack import PLACEHOLDER_QUERY, Geometry, Row, i32, pack_decode, pack_prefill

__all__ = ["PLACEHOLDER_QUERY", "placeholder_inputs"]


def placeholder_inputs(config: CoreConfig, kind: StepKind = StepKind.DECODE) -> InputMetadata | InputMetadataV41:
    """What a rank without work feeds to the model while the others make a step of ``kind``.

    Host arrays of the record that ``config.inputs`` names: ``T = N = 1``, token 0 at position 0, block 0, slots 0.
    Decode: ``valid_token_mask`` is false and ``query_indices`` is 998244353. Prefill: the one visible key is a row of
    zeros, because load segments never name the null block. Raises ArgumentError for a kind that is neither.
    """
    if kind not in (StepKind.DECODE, StepKind.PREFILL):
        raise ArgumentError(f"{kind!r} is no kind of a placeholder step", field="kind")
    geometry = Geometry(
        block_size=config.block_size,
        window=config.window,
        swa_ring=config.ring,
        ratios_sparse=config.ratios_sparse,
        ratios_dense=config.ratios_dense,
        max_blocks=config.max_blocks,
        ngram=config.ngram,
        ngram_pad=config.ngram_pad,  # no table: the window holds nothing but pads
        replay_mode=ReplayMode[config.replay_mode.upper()],
    )
    rows = [Row(tokens=[0], start=0, q=1, block_table=[0])]
    values = (pack_decode if kind == StepKind.DECODE else pack_prefill)(rows, geometry)
    if kind == StepKind.DECODE:
        values["valid_token_mask"] = np.zeros(1, np.bool_)
        values["query_indices"] = i32([PLACEHOLDER_QUERY])
        if config.csr_tables:
            values["block_tables"] = np.zeros((1, config.max_blocks), np.int32)
        else:
            values["row_slot_idx"] = i32([0])  # row 0 of a table kept by row slot names the null block only
    else:
        values["load_main"] = {ratio: i32([[-1, 0, 1, 0]]) for ratio in config.ratios}
    record = InputMetadataV41() if config.inputs == "InputMetadataV41" else InputMetadata()
    for name, value in values.items():
        if name in record.FIELDS:
            setattr(record, name, None if isinstance(value, dict) and not value else value)
    return record
