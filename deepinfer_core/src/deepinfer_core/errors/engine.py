"""Faults while an engine runs."""

from __future__ import annotations

from deepinfer_core.errors.base import DeepInferError
from deepinfer_core.errors.exit_statuses import EXIT_SOME_FAILED


class EngineError(DeepInferError):
    """A fault inside the engine that is no fault of the caller.

    :cause: A fault of DeepInfer or of a plugin in the middle of a run; the reason names the phase.
    :remedy: Run it again with ``--debug`` and report it. Results told before are good.
    """

    code = "E_ENGINE"


class GroupError(DeepInferError):
    """Ranks that step together lost each other: one is gone, late, or counts other steps than the rest.

    :cause: A process died or was started with other settings, or a host or its network is too slow.
    :remedy: End all ranks, and start them together with the same settings.
    """

    code = "E_GROUP"


class RequestFailed(DeepInferError):
    """One request ended in an error while the others went on.

    :cause: What this request alone asked for, or a plugin's part that it named, failed.
    :remedy: The line of the request has its own reason; correct it and send it again.
    """

    code = "E_REQUEST"
    exit_status = EXIT_SOME_FAILED


class GrammarError(RequestFailed):
    """A request's grammar does not compile, or not in time, or cannot be continued; ``finish_detail`` says which.

    :cause: The schema or expression is refused or too large, or the text came to where nothing may follow.
    :remedy: Simplify the part that is named, or raise ``--so-timeout-s``; see the page on structured output.
    """

    code = "E_GRAMMAR"
