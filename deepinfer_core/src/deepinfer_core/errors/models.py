"""The model, its configuration, its checkpoint or its tokenizer is wrong."""

from __future__ import annotations

from deepinfer_core.errors.base import DeepInferError
from deepinfer_core.errors.exit_statuses import EXIT_MODEL


class ModelError(DeepInferError):
    """A model cannot be used; its subclasses say why.

    :cause: The model directory or the plugin for it is not usable.
    :remedy: Run ``deepinfer doctor --model DIR``; it names every problem without loading weights.
    """

    code = "E_MODEL"
    exit_status = EXIT_MODEL


class ModelNotFound(ModelError):
    """The model directory does not exist, or no installed plugin knows its architecture.

    :cause: The path is misspelt, or the plugin for the architecture is not installed.
    :remedy: Correct ``--model``, or install the plugin; the message lists the architectures that are known.
    """

    code = "E_MODEL_MISSING"


class ModelConfigError(ModelError, ValueError):
    """``config.json`` lacks a field, or has one of the wrong type or out of range.

    :cause: The configuration is damaged, or of a variant that the plugin does not know.
    :remedy: Compare the named field with the released ``config.json``.
    """

    code = "E_MODEL_CONFIG"


class ModelAmbiguous(ModelError):
    """Several model plugins match equally well, and no setting says which one to use.

    :cause: Two plugins claim the architecture with the same score.
    :remedy: Say ``--model-plugin NAME``.
    """

    code = "E_MODEL_AMBIGUOUS"


class CheckpointError(ModelError):
    """Shards or tensors are missing, surplus, truncated, or of the wrong dtype or shape (all listed together).

    :cause: A download is incomplete, or the files are of another model than ``config.json`` says.
    :remedy: Download the shards that are named again; ``deepinfer doctor --model DIR`` looks without loading.
    """

    code = "E_CHECKPOINT"


class TokenizerError(ModelError):
    """The tokenizer's files are missing, malformed, or do not fit the model.

    :cause: A file is absent or damaged, or belongs to another model.
    :remedy: Put the model's own tokenizer files beside ``config.json``.
    """

    code = "E_TOKENIZER"


class ModelMismatch(ModelError):
    """Results are to be repeated with another model than the one that made them; names both fingerprints.

    :cause: Another directory was given, or its files changed since.
    :remedy: Give the directory of that model with ``--model``.
    """

    code = "E_MODEL_MISMATCH"


class ModelCannotChat(ModelError):
    """The model's tokenizer lacks control tokens of the chat form; names them.

    :cause: The model was not trained for conversations, or its tokenizer is of another model.
    :remedy: Use ``deepinfer generate``, or a model with these tokens.
    """

    code = "E_CHAT"


class LibraryMissing(DeepInferError):
    """A feature needs a package that is not installed; names it.

    :cause: An extra of the distribution was not installed.
    :remedy: Install what the remedy names.
    """

    code = "E_LIBRARY"
    exit_status = EXIT_MODEL
