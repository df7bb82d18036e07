"""Machine-checked contracts between scheduler, backends, models and samplers.

Records are generated from `contracts/schema/`; `Record.validate` and `validate` check one, `verify` compares a compiled
library with this package, `compatible` compares the chains of two sides.
"""

from __future__ import annotations

from pathlib import Path

from deepinfer_contracts._chains import CONTRACTS, DTYPES
from deepinfer_contracts._compat import ContractInfo, ContractMismatch, Declared, compatible, library_table, verify
from deepinfer_contracts._enums import (
    AbortStatus,
    AllocStatus,
    DType,
    EngineType,
    ErrorCode,
    EventFlags,
    EventKind,
    FinishDetail,
    FinishReason,
    GrammarStatus,
    Level,
    Phase,
    Pool,
    ReplayMode,
    RowStatus,
    Space,
    StepFlags,
    StepKind,
    StepMode,
    ViewFlags,
)
from deepinfer_contracts._ops import CACHE_FORMATS, CLAIMS, FEATURES, OPS, Op
from deepinfer_contracts._record import Record
from deepinfer_contracts._records import (
    EventBatch,
    InputMetadata,
    InputMetadataV41,
    Limits,
    SamplerInputs,
    SamplerOutput,
    SchedulerOutputs,
)
from deepinfer_contracts._validation import ContractViolation, rule_text, validate

__all__ = [
    "CACHE_FORMATS",
    "CLAIMS",
    "CONTRACTS",
    "DTYPES",
    "FEATURES",
    "OPS",
    "AbortStatus",
    "AllocStatus",
    "ContractInfo",
    "ContractMismatch",
    "ContractViolation",
    "DType",
    "Declared",
    "EngineType",
    "ErrorCode",
    "EventBatch",
    "EventFlags",
    "EventKind",
    "FinishDetail",
    "FinishReason",
    "GrammarStatus",
    "InputMetadata",
    "InputMetadataV41",
    "Level",
    "Limits",
    "Op",
    "Phase",
    "Pool",
    "Record",
    "ReplayMode",
    "RowStatus",
    "SamplerInputs",
    "SamplerOutput",
    "SchedulerOutputs",
    "Space",
    "StepFlags",
    "StepKind",
    "StepMode",
    "ViewFlags",
    "compatible",
    "get_cdef",
    "get_include",
    "library_table",
    "rule_text",
    "validate",
    "verify",
]


def get_include() -> str:
    """Folder of `di_contracts.h`, for the build of a compiled plugin."""
    return str(Path(__file__).parent / "include")


def get_cdef() -> str:
    """The cffi declarations of every record."""
    return (Path(__file__).parent / "cdef.txt").read_text(encoding="utf-8")
