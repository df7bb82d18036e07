"""What a caller asked for is wrong: command lines, parameters, prompts, files, settings."""

from __future__ import annotations

from deepinfer_core.errors.base import DeepInferError
from deepinfer_core.errors.exit_statuses import EXIT_MISMATCH, EXIT_OUTPUT, EXIT_USAGE


class CommandUsageError(DeepInferError):
    """The command line names an unknown command or option, or lacks a value.

    :cause: A command or an option is misspelt, or its value is missing.
    :remedy: Take the name that the message proposes, or see ``deepinfer COMMAND --help``.
    """

    code = "E_USAGE"
    exit_status = EXIT_USAGE


class InvalidParameter(DeepInferError, ValueError):
    """A request parameter or option is outside its allowed range (names field, value and range).

    :cause: A value is out of range, or two parameters exclude each other.
    :remedy: Change the named field; the message has its range.
    """

    code = "E_PARAM"
    exit_status = EXIT_USAGE


class InvalidPrompt(DeepInferError, ValueError):
    """A prompt is empty, not UTF-8, too long, or holds an id outside the vocabulary.

    :cause: The text or the token ids cannot be the beginning of an answer of this model.
    :remedy: Correct the prompt, or raise ``--max-model-len`` if the model allows longer ones.
    """

    code = "E_PROMPT"
    exit_status = EXIT_USAGE


class InvalidMessages(DeepInferError, ValueError):
    """Messages of a chat are no conversation: an unknown role, an empty turn, a tool's result without a call.

    :cause: The conversation does not follow the chat form.
    :remedy: Correct the message that is named by its place.
    """

    code = "E_MESSAGES"
    exit_status = EXIT_USAGE


class InvalidInputFile(DeepInferError, ValueError):
    """A prompts file cannot be read, or one of its lines is malformed (names the line).

    :cause: The file is absent or not readable, or a line is neither text nor a JSON object with known fields.
    :remedy: Correct the file at the line that is named.
    """

    code = "E_INPUT"
    exit_status = EXIT_USAGE


class BaselineError(DeepInferError, ValueError):
    """A file of baselines is missing, damaged, of another version, locked, or of another checkpoint or inputs.

    :cause: The path is wrong, the file was edited or cut, or what it was made with is not what runs now.
    :remedy: Correct ``--baseline``, restore the file, or make its entries again with ``--update``.
    """

    code = "E_BASELINE"
    exit_status = EXIT_USAGE


class RunMismatch(DeepInferError):
    """A file of answers was begun by another run than the one that wants to go on with it; names what differs.

    :cause: The data set, the model or a parameter is another one than when the file was begun.
    :remedy: Give those of the file again, or another file to ``--out``: answers of two runs have no common score.
    """

    code = "E_RUN_MISMATCH"
    exit_status = EXIT_MISMATCH


class OutputError(DeepInferError):
    """Results cannot be written: standard output or the file of ``--out`` is full, or refuses them.

    :cause: The disk is full, or the file or stream does not take more.
    :remedy: Make room, or write elsewhere with ``--out``; results told before are whole.
    """

    code = "E_OUTPUT"
    exit_status = EXIT_OUTPUT


class CapacityError(DeepInferError):
    """A request can never fit into the cache, or memory for the caches is too small.

    :cause: Prompt and answer need more blocks than all of the pool, or ``--kv-memory`` is below one sequence.
    :remedy: Raise ``--kv-memory`` to the size that is named, or lower ``max_tokens`` or ``--max-model-len``.
    """

    code = "E_CAPACITY"
    exit_status = EXIT_USAGE


class ConfigError(DeepInferError, ValueError):
    """A setting is unknown, malformed, or contradicts another one.

    :cause: A key is misspelt, a value has another type or range, or two settings exclude each other.
    :remedy: Correct the key; ``deepinfer doctor --settings`` says where each value comes from.
    """

    code = "E_CONFIG"
    exit_status = EXIT_USAGE


class NotSupported(DeepInferError):
    """A feature that this release does not have; the remedy says what to do instead.

    :cause: What was asked for is not in this release.
    :remedy: Do what the remedy names instead.
    """

    code = "E_UNSUPPORTED"
    exit_status = EXIT_USAGE
