"""Every failure a person can meet: one class per cause, a stable code, a reason and a remedy.

The text is three lines, written for the person at the terminal (the traceback is for ``--debug``)::

    deepinfer: E_BACKEND_MISSING: no backend named 'ascent'; did you mean 'ascend'?
      reason: installed backends: ascend, cpu
      remedy: deepinfer --backend ascend ..., or pip install the plugin that provides 'ascent'

The docstring of each class has its cause and remedy, from which the page of errors is written.
"""

from __future__ import annotations

from deepinfer_core.errors.backends import (
    BackendError,
    BackendNotInstalled,
    BackendUnavailable,
    DeviceLost,
    GraphCaptureError,
    HiddenSync,
    LimitError,
    NanFound,
    ShapeContractError,
    UnsupportedArch,
    UnsupportedFeature,
    UnsupportedFormat,
    UnsupportedOp,
    VendorImportError,
)
from deepinfer_core.errors.base import (
    DeepInferError,
)
from deepinfer_core.errors.engine import (
    EngineError,
    GrammarError,
    GroupError,
    RequestFailed,
)
from deepinfer_core.errors.exit_statuses import (
    EXIT_BACKEND,
    EXIT_INTERNAL,
    EXIT_INTERRUPTED,
    EXIT_MISMATCH,
    EXIT_MODEL,
    EXIT_OK,
    EXIT_OUTPUT,
    EXIT_READER_LEFT,
    EXIT_SOME_FAILED,
    EXIT_TERMINATED,
    EXIT_USAGE,
)
from deepinfer_core.errors.models import (
    CheckpointError,
    LibraryMissing,
    ModelAmbiguous,
    ModelCannotChat,
    ModelConfigError,
    ModelError,
    ModelMismatch,
    ModelNotFound,
    TokenizerError,
)
from deepinfer_core.errors.plugins import (
    ApiVersionError,
    ContractError,
    HookReturnError,
    ManifestError,
    PluginConflict,
    PluginError,
    PluginLockError,
    PluginMissing,
)
from deepinfer_core.errors.usage import (
    BaselineError,
    CapacityError,
    CommandUsageError,
    ConfigError,
    InvalidInputFile,
    InvalidMessages,
    InvalidParameter,
    InvalidPrompt,
    NotSupported,
    OutputError,
    RunMismatch,
)

__all__ = [
    "EXIT_BACKEND",
    "EXIT_INTERNAL",
    "EXIT_INTERRUPTED",
    "EXIT_MISMATCH",
    "EXIT_MODEL",
    "EXIT_OK",
    "EXIT_OUTPUT",
    "EXIT_READER_LEFT",
    "EXIT_SOME_FAILED",
    "EXIT_TERMINATED",
    "EXIT_USAGE",
    "ApiVersionError",
    "BackendError",
    "BackendNotInstalled",
    "BackendUnavailable",
    "BaselineError",
    "CapacityError",
    "CheckpointError",
    "CommandUsageError",
    "ConfigError",
    "ContractError",
    "DeepInferError",
    "DeviceLost",
    "EngineError",
    "GrammarError",
    "GraphCaptureError",
    "GroupError",
    "HiddenSync",
    "HookReturnError",
    "InvalidInputFile",
    "InvalidMessages",
    "InvalidParameter",
    "InvalidPrompt",
    "LibraryMissing",
    "LimitError",
    "ManifestError",
    "ModelAmbiguous",
    "ModelCannotChat",
    "ModelConfigError",
    "ModelError",
    "ModelMismatch",
    "ModelNotFound",
    "NanFound",
    "NotSupported",
    "OutputError",
    "PluginConflict",
    "PluginError",
    "PluginLockError",
    "PluginMissing",
    "RequestFailed",
    "RunMismatch",
    "ShapeContractError",
    "TokenizerError",
    "UnsupportedArch",
    "UnsupportedFeature",
    "UnsupportedFormat",
    "UnsupportedOp",
    "VendorImportError",
]
