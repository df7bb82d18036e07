"""``deepinfer ppl``: the perplexity of decoding beside a baseline."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deepinfer_core.commands import CommandState, common_options, load_llm, setting_options
from deepinfer_core.errors import EXIT_MISMATCH, EXIT_OK, CommandUsageError

if TYPE_CHECKING:
    from deepinfer_core.config import EngineConfig
    from deepinfer_verify.ppl.outcomes import Outcome
    from deepinfer_verify.ppl.records import Entry
    from deepinfer_verify.ppl.workloads import Workload


@click.command("ppl")
@click.option("--baseline", metavar="FILE", required=True, help="File of baselines, in JSON.")
@click.option(
    "--workload",
    "names",
    metavar="NAME",
    multiple=True,
    help="Only this one, by its name, or one's own as a .toml file; may be given several times.",
)
@click.option("--update", is_flag=True, help="Write what is computed into FILE, beside its other entries.")
@click.option("--reason", metavar="TEXT", help="Why; needed where an update changes numbers that are there.")
@click.option("--require", is_flag=True, help="Fail where FILE has no entry of this machine.")
@setting_options("backend", "emulate", "model", "model_plugin", "device", "kv_memory", "num_threads")
@common_options
@click.pass_obj
def ppl(
    state: CommandState, baseline: str, names: tuple[str, ...], update: bool, reason: str | None, require: bool
) -> int:
    """Force known texts through decode steps, drafts included, and compare their log-probabilities with FILE.

    FILE has an entry for each kind of machine and each workload. One of this machine is compared bit by bit, sample by
    sample. Without one, a workload in exact arithmetic is compared with another machine's within 1e-6 relative, others
    are not compared; both are said. Workloads: long, released, short; all of them unless named.

    Exit status: 0 nothing differs, 5 a difference, or with --require no entry; 2 usage, or FILE is missing, damaged or
    of another version; 3 backend, 4 model, 130 interrupted. With --update: 0 written.
    """
    from deepinfer_verify.ppl.outcomes import compared, updated
    from deepinfer_verify.ppl.storage import held_baseline, read_baseline
    from deepinfer_verify.ppl.workloads import find_workload, shipped

    if reason is not None and not update:
        raise CommandUsageError("--reason is for --update", remedy="give --update too, or leave it out")
    if require and update:
        raise CommandUsageError(
            "--require and --update exclude each other",
            reason="one fails without an entry of this machine, the other makes it",
            remedy="leave one of them out",
        )
    workloads = [find_workload(name) for name in dict.fromkeys(names or shipped())]
    # Those of os.path, which leave a user that nobody knows, and links in a circle, to whoever opens the file.
    path = Path(os.path.realpath(os.path.expanduser(baseline)))
    if update:
        with held_baseline(path):  # what is wrong with it, before the work
            pass
    entries = {} if update else read_baseline(path)
    outcomes = []
    for entry in _measured(state.resolve(), workloads):
        if update:
            with held_baseline(path) as held:  # an update of somebody else's may have come meanwhile
                outcome = updated(entry, held.entries, path, reason)
                if outcome.written != "unchanged":
                    held.put(outcome.found)
        else:
            outcome = compared(entry, entries, path)
        outcomes.append(outcome)
        if not state.json:
            _say(outcome)
    if state.json:
        _say_as_data(path, outcomes)
    return _status(outcomes, require=require)


def _measured(config: EngineConfig, workloads: list[Workload]) -> Iterator[Entry]:
    """Each in an engine of its own: the settings are the workload's."""
    from functools import cache

    from deepinfer_core.assembly.fingerprint import model_fingerprint
    from deepinfer_core.parameters.sampling_params import SamplingParams
    from deepinfer_verify.engine_settings import say_left_out, settings_for
    from deepinfer_verify.ppl.measure import measure

    fingerprint = cache(model_fingerprint)
    said: set[str] = set()
    for workload in workloads:
        settings, left_out = settings_for(config, workload.settings, origins=workload.origins)
        say_left_out(left_out, said)
        with load_llm(settings, SamplingParams()) as llm:
            yield measure(llm, workload, fingerprint(llm.assembly.card.path))


def _status(outcomes: list[Outcome], *, require: bool) -> int:
    from deepinfer_verify.ppl.comparison import Verdict

    if any(outcome.verdict is Verdict.DIFFERENT and not outcome.written for outcome in outcomes):
        return EXIT_MISMATCH
    if require and any(outcome.verdict is not Verdict.EQUAL for outcome in outcomes):
        sys.stderr.write("deepinfer: --require: a workload has no entry of this machine; make it with --update\n")
        return EXIT_MISMATCH
    return EXIT_OK


def _say(outcome: Outcome) -> None:
    from deepinfer_verify.ppl.report import lines_of

    click.echo("\n".join(lines_of(outcome)))


def _say_as_data(path: Path, outcomes: list[Outcome]) -> None:
    click.echo(json.dumps({"baseline": str(path), "workloads": [outcome.as_record() for outcome in outcomes]}))
