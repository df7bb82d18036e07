"""``deepinfer eval score``: Pass@1 of a file of answers, from that file alone."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer_core.commands import CommandState, common_options, json_line, output_file
from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED, CommandUsageError, InvalidInputFile, OutputError
from deepinfer_core.parameters.values import refuse
from deepinfer_core.plugins.emulation import BANNER
from deepinfer_eval.answers import read_answers
from deepinfer_eval.pass_at_1 import METHOD
from deepinfer_eval.scorer_names import scorer_of, scorer_of_options

if TYPE_CHECKING:
    from deepinfer_eval.scoring import Report, Verdict


@click.command("score")
@click.argument("answers", metavar="ANSWERS")
@click.option("--scorer", metavar="NAME", help="In place of the one that the file names; items keep their own.")
@click.option("--scorer-params", metavar="JSON", help="Parameters of the scorer, as an object.")
@click.option("--confidence", type=float, default=0.95, help="Of the interval; default 0.95.")
@click.option(
    "--out", metavar="FILE", callback=output_file, help="Write the verdict on each answer there, as JSON lines."
)
@common_options
@click.pass_obj
def score(
    state: CommandState,
    answers: str,
    scorer: str | None,
    scorer_params: str | None,
    confidence: float,
    out: str | None,
) -> int:
    """Judge the answers of ANSWERS, a file of deepinfer eval generate, and say Pass@1.

    Pass@1 is the mean over items of the share of right answers; the interval takes the items as what was sampled, since
    answers to one item are alike. No model is loaded, and neither is the data set: the file has what was expected.
    Exit status: 0 all answers are there, 1 some are missing, 2 usage or no file of answers, 3 a scorer that fails, 74
    verdicts not written.
    """
    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_eval.scoring import Scorers, judge, report

    if not 0 < confidence < 1:
        raise refuse("confidence", confidence, "a number above 0 and below 1")
    if out is not None:
        _require_other(out, answers)
    named = scorer_of_options(scorer, scorer_params)
    found = read_answers(answers)
    if found.header is None:
        raise InvalidInputFile(
            f"{answers} has no answers",
            reason="the file is empty or not there",
            remedy="run deepinfer eval generate with it as --out",
            details={"path": answers},
        )
    manager = PluginManager.from_config(state.resolve())
    verdicts = judge(found, Scorers(manager, named or scorer_of(found.header.scorer)))
    made = report(found.header, verdicts, confidence)
    if out is not None:
        _write(out, verdicts)
    if state.json:
        sys.stdout.buffer.write(json_line(_record(made)))
    else:
        sys.stdout.write(_text(made))
    sys.stdout.flush()
    return EXIT_SOME_FAILED if made.missing else EXIT_OK


def _require_other(out: str, answers: str) -> None:
    """Verdicts in the place of the answers would cost all of them."""
    with suppress(OSError):  # one of them is not there
        if os.path.samefile(out, answers):
            raise CommandUsageError(
                f"--out {out} is the file of answers itself",
                reason="its answers would be lost",
                remedy="give the verdicts a file of their own",
                details={"path": out},
            )


def _write(out: str, verdicts: list[Verdict]) -> None:
    from deepinfer_core.whole_file import write_whole

    try:
        write_whole(Path(out), b"".join(json_line(verdict.as_record()) for verdict in verdicts).decode("utf-8"))
    except OSError as err:
        raise OutputError(
            f"cannot write {out}", reason=err.strerror or str(err), remedy="check --out", details={"path": out}
        ) from err


def _record(made: Report) -> dict[str, Any]:
    p = made.pass_at_1
    return {
        "dataset": dict(made.dataset),
        "answers": made.answers,
        "missing": made.missing,
        "right": made.right,
        "pass_at_1": None if p is None else p.value,
        "standard_error": None if p is None else p.standard_error,
        "interval": None if p is None or p.interval is None else list(p.interval),
        "confidence": None if p is None else p.confidence,
        "effective_answers": None if p is None else p.effective_answers,
        "method": METHOD,
        "scorers": list(made.scorers),
        "finish_reasons": dict(made.finish_reasons),
        "cut_share": _cut(made),
        "without_answer": made.without_answer,
        "mean_tokens": made.mean_tokens,
        **({"emulated": True} if made.emulated else {}),
    }


def _cut(made: Report) -> float:
    return made.finish_reasons.get("length", 0) / made.answers if made.answers else 0.0


def _text(made: Report) -> str:
    dataset, p = made.dataset, made.pass_at_1
    lines = [f"data set: {dataset['name']}, {dataset['items']} items, sha256 {str(dataset['sha256'])[:16]}"]
    if made.emulated:
        lines.append(f"backend: {BANNER}")
    missing = f", {made.missing} missing" if made.missing else ""
    lines.append(f"answers: {made.answers}{missing}; {made.right} right; scored by {', '.join(made.scorers) or 'none'}")
    if p is None:
        lines.append("Pass@1: there is nothing to score")
    elif p.interval is None or p.standard_error is None or p.effective_answers is None:
        lines.append(f"Pass@1: {p.value:.4f} (one item says nothing about others: no interval)")
    else:
        low, high = p.interval
        lines.append(
            f"Pass@1: {p.value:.4f}, {p.confidence:.0%} interval {low:.4f} to {high:.4f}"
            f" ({METHOD}; standard error {p.standard_error:.4f}, worth {p.effective_answers:.1f} independent answers)"
        )
    reasons = ", ".join(f"{count} {reason}" for reason, count in made.finish_reasons.items()) or "none"
    lines.append(
        f"ended by: {reasons} ({_cut(made):.1%} cut); {made.without_answer} without an answer in them;"
        f" {made.mean_tokens:.1f} tokens each"
    )
    return "\n".join(lines) + "\n"
