"""Every failure a person can meet: one class per cause, a stable code, a reason and a remedy.

The text is three lines, written for the person at the terminal (the traceback is for ``--debug``)::

    deepinfer: E_BACKEND_MISSING: no backend named 'ascent'; did you mean 'ascend'?
      reason: installed backends: ascend, cpu
      remedy: deepinfer --backend ascend ..., or pip install the plugin that provides 'ascent'
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

EXIT_OK = 0
EXIT_SOME_FAILED = 1
EXIT_USAGE = 2
EXIT_BACKEND = 3
EXIT_MODEL = 4
EXIT_MISMATCH = 5
EXIT_INTERNAL = 70
EXIT_OUTPUT = 74
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 128 + 13  # what a shell reports for a process that SIGPIPE ended


class DeepInferError(Exception):
    """Base of all typed errors. ``what`` names the failure with its values.

    :param reason: Why it happened, as far as known.
    :param remedy: What the reader can do about it.
    :param details: Machine-readable values (JSON-serialisable), for ``--json`` and for tests.
    """

    code: ClassVar[str] = "E_INTERNAL"
    exit_status: ClassVar[int] = EXIT_INTERNAL

    def __init__(
        self, what: str, *, reason: str = "", remedy: str = "", details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.reason = reason
        self.remedy = remedy
        self.details: dict[str, object] = dict(details or {})

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.reason:
            lines.append(f"  reason: {self.reason}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)

    def as_record(self) -> dict[str, object]:
        """The same error as data, for JSON output."""
        return {
            "code": self.code,
            "message": self.what,
            "reason": self.reason,
            "remedy": self.remedy,
            **({"details": self.details} if self.details else {}),
        }


# --- usage and requests -----------------------------------------------------------------------------------------


class CommandUsageError(DeepInferError):
    """The command line names an unknown command or option, or lacks a value."""

    code = "E_USAGE"
    exit_status = EXIT_USAGE


class InvalidParameter(DeepInferError, ValueError):
    """A request parameter or option is outside its allowed range (names field, value and range)."""

    code = "E_PARAM"
    exit_status = EXIT_USAGE


class InvalidPrompt(DeepInferError, ValueError):
    """A prompt is empty, not UTF-8, too long, or holds an id outside the vocabulary."""

    code = "E_PROMPT"
    exit_status = EXIT_USAGE


class InvalidMessages(DeepInferError, ValueError):
    """Messages of a chat are no conversation: an unknown role, an empty turn, a tool's result without a call."""

    code = "E_MESSAGES"
    exit_status = EXIT_USAGE


class InvalidInputFile(DeepInferError, ValueError):
    """A prompts file cannot be read, or one of its lines is malformed (names the line)."""

    code = "E_INPUT"
    exit_status = EXIT_USAGE


class OutputError(DeepInferError):
    """Results cannot be written: standard output or the file of ``--out`` is full, or refuses them."""

    code = "E_OUTPUT"
    exit_status = EXIT_OUTPUT


class CapacityError(DeepInferError):
    """A request can never fit into the cache, or memory for the caches is too small."""

    code = "E_CAPACITY"
    exit_status = EXIT_USAGE


class ConfigError(DeepInferError, ValueError):
    """A setting is unknown, malformed, or contradicts another one."""

    code = "E_CONFIG"
    exit_status = EXIT_USAGE


class NotSupported(DeepInferError):
    """A feature that this release does not have; the remedy says what to do instead."""

    code = "E_UNSUPPORTED"
    exit_status = EXIT_USAGE


# --- plugins ----------------------------------------------------------------------------------------------------


class PluginError(DeepInferError):
    """A plugin failed: ``phase`` is import, register, probe or create."""

    code = "E_PLUGIN"
    exit_status = EXIT_BACKEND


class ManifestError(PluginError):
    """A plugin's ``deepinfer.toml`` is missing, malformed, or does not fit its entry points."""

    code = "E_MANIFEST"


class ApiVersionError(PluginError):
    """A plugin needs another plugin API version than this core provides; names both."""

    code = "E_API"


class ContractError(PluginError):
    """Two sides disagree on a record; names the contract and the first differing field."""

    code = "E_CONTRACT"


class HookReturnError(PluginError):
    """A hook returned something else than its specification says; names hook, plugin and type."""

    code = "E_HOOK_RETURN"


class PluginConflict(PluginError):
    """Two distributions provide the same name, and no setting says which one wins."""

    code = "E_PLUGIN_CONFLICT"


class PluginMissing(PluginError):
    """No installed plugin has the name that was asked for; lists those that are there."""

    code = "E_PLUGIN_MISSING"


# --- backends ---------------------------------------------------------------------------------------------------


class BackendError(DeepInferError):
    """No backend can do what was asked; names each one that was considered, with its reason."""

    code = "E_BACKEND"
    exit_status = EXIT_BACKEND


class BackendNotInstalled(BackendError):
    """No installed plugin provides the backend that was asked for."""

    code = "E_BACKEND_MISSING"


class BackendUnavailable(BackendError):
    """The backend is installed, but its device or driver cannot be used on this machine."""

    code = "E_BACKEND_UNAVAILABLE"


class UnsupportedArch(BackendError):
    """The backend has no kernels for the device that is present."""

    code = "E_ARCH"


class UnsupportedOp(BackendError):
    """The model needs an op that the backend lacks."""

    code = "E_OP"


class UnsupportedFormat(BackendError):
    """The model needs a number or cache format that the backend lacks."""

    code = "E_FORMAT"


class UnsupportedFeature(BackendError):
    """The model needs a feature that the backend lacks."""

    code = "E_FEATURE"


class VendorImportError(BackendError):
    """A vendor library that the backend needs cannot be imported; carries the library's own message."""

    code = "E_VENDOR"


class LimitError(BackendError):
    """A size exceeds a limit of the backend."""

    code = "E_LIMIT"


class ShapeContractError(BackendError):
    """An op argument violates its contract: names op, argument, expected and got."""

    code = "E_SHAPE"
    exit_status = EXIT_INTERNAL


class HiddenSync(BackendError):
    """A plugin waits for the device where a step is launched (setting ``sync_guard``)."""

    code = "E_SYNC"


# --- models and checkpoints -------------------------------------------------------------------------------------


class ModelError(DeepInferError):
    """A model cannot be used; its subclasses say why."""

    code = "E_MODEL"
    exit_status = EXIT_MODEL


class ModelNotFound(ModelError):
    """The model directory does not exist, or no installed plugin knows its architecture."""

    code = "E_MODEL_MISSING"


class ModelConfigError(ModelError, ValueError):
    """``config.json`` lacks a field, or has one of the wrong type or out of range."""

    code = "E_MODEL_CONFIG"


class ModelAmbiguous(ModelError):
    """Several model plugins match equally well, and no setting says which one to use."""

    code = "E_MODEL_AMBIGUOUS"


class CheckpointError(ModelError):
    """Shards or tensors are missing, surplus, truncated, or of the wrong dtype or shape (all listed together)."""

    code = "E_CHECKPOINT"


class TokenizerError(ModelError):
    """The tokenizer's files are missing, malformed, or do not fit the model."""

    code = "E_TOKENIZER"


class ModelMismatch(ModelError):
    """Results are to be repeated with another model than the one that made them; names both fingerprints."""

    code = "E_MODEL_MISMATCH"


class ModelCannotChat(ModelError):
    """The model's tokenizer lacks control tokens of the chat form; names them."""

    code = "E_CHAT"


class LibraryMissing(DeepInferError):
    """A feature needs a package that is not installed; names it."""

    code = "E_LIBRARY"
    exit_status = EXIT_MODEL


# --- engine -----------------------------------------------------------------------------------------------------


class EngineError(DeepInferError):
    """A fault inside the engine that is no fault of the caller."""

    code = "E_ENGINE"


class GroupError(DeepInferError):
    """Ranks that step together lost each other: one is gone, late, or counts other steps than the rest."""

    code = "E_GROUP"


class RequestFailed(DeepInferError):
    """One request ended in an error while the others went on."""

    code = "E_REQUEST"
    exit_status = EXIT_SOME_FAILED


class GrammarError(RequestFailed):
    """A request's grammar does not compile, or not in time, or cannot be continued; ``finish_detail`` says which."""

    code = "E_GRAMMAR"
