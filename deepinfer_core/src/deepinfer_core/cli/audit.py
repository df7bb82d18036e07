"""``deepinfer audit``: whether the tokens of a result file were drawn from the distributions that it reports."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from deepinfer_core.cli.state import CommandState, common_options
from deepinfer_core.errors import EXIT_MISMATCH, EXIT_OK
from deepinfer_core.parameters.values import refuse
from deepinfer_core.plugins.emulation import BANNER

if TYPE_CHECKING:
    from deepinfer_core.audit import Acceptance, Draws, LogprobSummary, Uniformity

LEVEL = 1e-3
"""So often a right sampler fails."""


@click.command("audit")
@click.argument("results", metavar="RESULT")
@click.option(
    "--level", type=float, default=LEVEL, help=f"Fail below this p value; default {LEVEL}, one right file in 1,000."
)
@click.option("--noise-seed", type=int, default=0, help="Of the noise that spreads each draw over its own mass; 0.")
@common_options
@click.pass_context
def audit(context: click.Context, results: str, level: float, noise_seed: int) -> int:
    """Test whether the tokens of RESULT were drawn as RESULT says, a file of generate --out --sum-smaller --logprobs.

    Each draw gives a number that is uniform if the token came from the reported distribution; a Kolmogorov-Smirnov test
    looks at all of them. Then come mean log-probabilities by position, and what became of drafts. No model is loaded.
    Exit status: 0 the draws fit, 5 they do not, 2 no file of results or no draw in it, 4 scipy is not installed.
    """
    from deepinfer_core.audit import acceptance, check_uniformity, collect, summarise
    from deepinfer_core.replay import read_results

    if not 0 < level < 1:
        raise refuse("level", level, "a number above 0 and below 1")
    if noise_seed < 0:
        raise refuse("noise_seed", noise_seed, "an integer >= 0")
    state = context.ensure_object(CommandState)
    recorded = read_results(results)
    requests = recorded.requests
    answers = [answer for request in requests for answer in request.answers]
    draws = collect(requests)
    found = check_uniformity(draws, level=level, noise_seed=noise_seed)
    logprobs, drafts = summarise(answers), acceptance(answers)
    mark = {"emulated": True} if recorded.run.get("settings", {}).get("emulate") is True else {}
    if state.json:
        from deepinfer_core.cli.json_lines import json_line

        sys.stdout.buffer.write(json_line(_record(draws, found, logprobs, drafts) | mark))
    else:
        sys.stdout.write((f"backend: {BANNER}\n" if mark else "") + _text(draws, found, logprobs, drafts))
    sys.stdout.flush()
    return EXIT_OK if found.holds else EXIT_MISMATCH


def _record(draws: Draws, found: Uniformity, logprobs: LogprobSummary, drafts: Acceptance | None) -> dict[str, Any]:
    record: dict[str, Any] = {
        "fits": found.holds,
        "draws": found.count,
        "left_out": dict(draws.left_out),
        "statistic": found.statistic,
        "statistic_location": found.location,
        "p_value": found.p_value,
        "level": found.level,
        "logprobs": {"count": list(logprobs.count), "mean": list(logprobs.mean)},
    }
    if drafts is not None:
        record["drafts"] = {
            "verified": list(drafts.verified),
            "accepted": list(drafts.accepted),
            "steps": drafts.steps,
            "tokens": drafts.tokens,
            "tokens_per_step": drafts.tokens_per_step,
        }
    return record


def _text(draws: Draws, found: Uniformity, logprobs: LogprobSummary, drafts: Acceptance | None) -> str:
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(draws.left_out.items()))
    verdict = "the draws fit" if found.holds else "the draws do not fit"
    first = f"draws: {found.count}" + (f" (left out: {reasons})" if reasons else "")
    test = f"uniformity: distance {found.statistic:.4f} at {found.location:.2f}, p value {found.p_value:.3g}"
    test += f", level {found.level:g}: {verdict} (so many draws show distances from {found.smallest_distance:.3f})"
    mean = f"log-probability: mean {_number(logprobs.between(0, len(logprobs.count)))} of {logprobs.tokens} tokens"
    lines = [first, test, f"{mean}; by position {', '.join(_by_position(logprobs))}"]
    if drafts is not None:
        places = ", ".join(
            f"{taken}/{looked_at}" for taken, looked_at in zip(drafts.accepted, drafts.verified, strict=True)
        )
        lines.append(
            f"drafts: {sum(drafts.verified)} verified, {sum(drafts.accepted)} accepted (by place {places}),"
            f" {drafts.tokens_per_step:.2f} tokens a step"
        )
    return "\n".join(lines) + "\n"


def _by_position(logprobs: LogprobSummary) -> list[str]:
    """Each time twice as many positions."""
    out, first, length = [], 0, len(logprobs.count)
    while first < length:
        last = min(max(1, 2 * first), length)
        name = f"{last}" if last - first == 1 else f"{first + 1}-{last}"
        out.append(f"{name}: {_number(logprobs.between(first, last))}")
        first = last
    return out


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
