"""Rates that follow from steps, as ``spec/engine.md`` 9.3 defines them."""

from __future__ import annotations

FULL_ACCEPTANCE = "every draft is accepted; beside it stand the measured acceptance and the real token rate"


def full_acceptance_rate(steps_per_s: float, batch: int, drafts: int, cp: int = 1) -> float:
    """Tokens a second if every one of ``drafts`` drafts of each of ``batch`` requests were accepted in every step.

    :param cp: Size of the context-parallel group, whose ranks share the tokens.
    """
    return steps_per_s * batch * (1 + drafts) / cp


def user_rate(tokens_per_s: float, batch: int) -> float:
    """Tokens a second of one request among ``batch``."""
    return tokens_per_s / batch


def acceptance(before: dict[str, object], after: dict[str, object]) -> dict[str, object]:
    """What speculation did between two draft reports (``DraftReport.as_record``): counts by place, and their ratio."""

    def counts(name: str) -> list[int]:
        first, last = _ints(before[name]), _ints(after[name])
        return [b - a for a, b in zip(first or [0] * len(last), last, strict=True)]

    verified, accepted = counts("verified"), counts("accepted")
    steps = _int(after["request_steps"]) - _int(before["request_steps"])
    tokens = _int(after["output_tokens"]) - _int(before["output_tokens"])
    return {
        "verified": verified,
        "accepted": accepted,
        "by_place": [a / v if v else None for a, v in zip(accepted, verified, strict=True)],
        "accepted_share": sum(accepted) / sum(verified) if sum(verified) else None,
        "tokens_per_request_step": tokens / steps if steps else None,
    }


def _ints(value: object) -> list[int]:
    return [int(item) for item in value] if isinstance(value, list) else []


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0
