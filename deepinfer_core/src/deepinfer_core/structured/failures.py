"""How a request ends that its grammar ends (``spec/sampling.md`` 3.6). The others go on."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import frozen

from deepinfer_core.errors import DeepInferError, GrammarError
from deepinfer_core.plugins.failure import blame, exception_text
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.structured.compiling import EngineNotMade

LAST_TOKENS = 32
"""Of the answer, in the details of a failure."""


@frozen
class Failure:
    """The end of a request, and what is said about it."""

    detail: FinishDetail
    error: DeepInferError


def not_compiled(request_id: str, schema_type: str, exc: BaseException, owner: str) -> Failure:
    """The compiler refused the grammar, or the grammar engine could not be made."""
    if isinstance(exc, EngineNotMade):
        cause: BaseException = exc.__cause__ or exc
        error = exc.error or GrammarError(
            f"request {request_id}: the grammar engine{_of(owner)} could not be made",
            reason=f"{exception_text(cause)} (raised at {blame(cause)})",
            remedy=_report(owner),
            details={"op": "grammar.create", "plugin": owner},
        )
        return Failure(FinishDetail.SO_RUNTIME_ERROR, error)
    details: dict[str, object] = {"op": "grammar.compile", "plugin": owner, "schema_type": schema_type}
    reason, remedy = str(exc).strip() or type(exc).__name__, "correct the grammar, or ask without it"
    if isinstance(exc, DeepInferError):
        reason = exc.what + (f" ({exc.reason})" if exc.reason else "")
        remedy = exc.remedy or remedy
        details |= {"code": exc.code, **exc.details}
    details["exception"] = type(exc).__name__
    error = GrammarError(
        f"request {request_id}: the {schema_type} grammar does not compile",
        reason=reason,
        remedy=remedy,
        details=details,
    )
    error.__cause__ = exc
    return Failure(FinishDetail.SO_INVALID_GRAMMAR, error)


def compile_timeout(request_id: str, schema_type: str, timeout_s: float) -> Failure:
    return Failure(
        FinishDetail.SO_COMPILE_TIMEOUT,
        GrammarError(
            f"request {request_id}: the {schema_type} grammar did not compile within {timeout_s:g} s",
            reason="the time counts from submission, waiting for a free worker included",
            remedy="simplify the grammar, or raise --so-timeout-s or --so-builder-cpus",
            details={"timeout_s": timeout_s},
        ),
    )


def no_capacity(request_id: str, workers: int, timeout_s: float) -> Failure:
    return Failure(
        FinishDetail.SO_NO_CAPACITY,
        GrammarError(
            f"request {request_id}: no worker can compile its grammar",
            reason=f"all {workers} compile longer than {timeout_s:g} s, and a thread cannot be stopped",
            remedy="send grammars that were compiled before, wait, or make a new LLM",
            details={"workers": workers, "timeout_s": timeout_s},
        ),
    )


def matcher_failed(request_id: str, op: str, exc: BaseException, tokens: Sequence[int], owner: str) -> Failure:
    """A call of the plugin raised, or returned something else than its protocol says."""
    error = GrammarError(
        f"request {request_id}: {op}{_of(owner)} failed (token {len(tokens) + 1})",
        reason=f"{exception_text(exc)} (raised at {blame(exc)})",
        remedy=_report(owner),
        details={"op": op, "plugin": owner, "exception": type(exc).__name__, **_last(tokens)},
    )
    error.__cause__ = exc
    return Failure(FinishDetail.SO_RUNTIME_ERROR, error)


def token_rejected(request_id: str, token: int, position: int, tokens: Sequence[int], owner: str) -> Failure:
    """A token that was sampled under the mask is no token of the grammar: an invariant broke."""
    return Failure(
        FinishDetail.SO_RUNTIME_ERROR,
        GrammarError(
            f"request {request_id}: the grammar does not take token {token}, the answer's number {position}",
            reason="the sampler chose it although the mask forbids it, or mask and matcher disagree",
            remedy=_report(owner, "and of the sampler "),
            details={
                "op": "matcher.accept",
                "plugin": owner,
                "token": token,
                "output_index": position,
                **_last(tokens),
            },
        ),
    )


def forced_elsewhere(request_id: str, token: int, position: int, tokens: Sequence[int], owner: str) -> Failure:
    """What the caller prescribes and what the grammar allows have nothing in common."""
    return Failure(
        FinishDetail.SO_DEAD_END,
        GrammarError(
            f"request {request_id}: the grammar does not take the forced token {token}, the answer's number {position}",
            reason="forced_token_ids leaves the grammar there, so no answer has both",
            remedy="correct forced_token_ids or the grammar, or give only one of them",
            details={"plugin": owner, "token": token, "output_index": position, **_last(tokens)},
        ),
    )


def dead_end(request_id: str, tokens: Sequence[int], owner: str) -> Failure:
    """No token that the grammar allows can be chosen."""
    return Failure(
        FinishDetail.SO_DEAD_END,
        GrammarError(
            f"request {request_id}: no token of the vocabulary continues the grammar (token {len(tokens) + 1})",
            reason="the grammar allows none, or only tokens that are excluded otherwise",
            remedy="allow more in the grammar, or exclude fewer tokens",
            details={"op": "matcher.fill", "plugin": owner, **_last(tokens)},
        ),
    )


def _last(tokens: Sequence[int]) -> dict[str, object]:
    return {"output_index": len(tokens) + 1, "last_tokens": list(tokens[-LAST_TOKENS:])}


def _of(owner: str) -> str:
    return f" of {owner}" if owner else ""


def _report(owner: str, more: str = "") -> str:
    return f"report it to the authors of {owner or 'the grammar engine'} {more}with the traceback that --debug prints"
