"""The contract records that the step loop uses, or a typed error where deepinfer-contracts is not installed."""

from __future__ import annotations

try:
    from deepinfer_contracts import (
        CONTRACTS,
        EngineType,
        EventBatch,
        EventFlags,
        EventKind,
        FinishReason,
        InputMetadata,
        Pool,
        RowStatus,
        SamplerInputs,
        SamplerOutput,
        SchedulerOutputs,
        StepFlags,
        StepKind,
        StepMode,
    )
except ModuleNotFoundError as err:
    if err.name != "deepinfer_contracts":
        raise
    from deepinfer_core.plugins.claims import contracts_missing

    raise contracts_missing("the records of a step come from it") from err

__all__ = [
    "CONTRACTS",
    "EngineType",
    "EventBatch",
    "EventFlags",
    "EventKind",
    "FinishReason",
    "InputMetadata",
    "Pool",
    "RowStatus",
    "SamplerInputs",
    "SamplerOutput",
    "SchedulerOutputs",
    "StepFlags",
    "StepKind",
    "StepMode",
]
