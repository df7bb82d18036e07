"""``deepinfer replay``: a run again from its output file, compared token by token."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deepinfer_core.cli.generate import SETTINGS, load_llm
from deepinfer_core.cli.state import CommandState, common_options, setting_options
from deepinfer_core.errors import EXIT_MISMATCH, EXIT_OK, ModelMismatch

if TYPE_CHECKING:
    from deepinfer_core.llm import LLM
    from deepinfer_core.replay import Difference, RecordedRequest, Results
    from deepinfer_core.requests.prompts import PromptInput


@click.command("replay")
@click.argument("results", metavar="RESULT")
@setting_options(*SETTINGS)
@common_options
@click.pass_context
def replay(context: click.Context, results: str) -> int:
    """Run the requests of RESULT again, a file that generate --out wrote, and compare token by token.

    Model, backend and settings are those of the file, unless options say otherwise. Standard error says what differs
    from the recorded run: versions, backend, settings. Exit status: 0 equal, 5 different, 2 no file of results, 3
    backend, 4 another model, 130 interrupted.
    """
    from deepinfer_core.parameters.sampling_params import SamplingParams
    from deepinfer_core.replay import describe_run, differences_of_runs, read_results, refuse_foreign_ids

    state = context.ensure_object(CommandState)
    recorded = read_results(results)
    run = recorded.run
    held = {"model": run.get("model"), "backend": run.get("backend"), "max_model_len": run.get("max_model_len")}
    config = state.resolve({**held, **run.get("settings", {})})
    if config.model is not None:
        _require_model(run, Path(os.path.expanduser(config.model)))  # before its weights are read
    with load_llm(config, SamplingParams()) as llm:
        _require_model(run, llm.assembly.card.path)
        refuse_foreign_ids(recorded, llm.built.vocab_size)
        environment = list(differences_of_runs(run, describe_run(llm)))
        for phrase in environment:
            sys.stderr.write(f"deepinfer: not as recorded: {phrase}\n")
        if config.prefix_cache:
            sys.stderr.write("deepinfer: with a prefix cache tokens may depend on what else was running\n")
        differences = _replay(llm, recorded)
        return _report(recorded, differences, environment, llm, as_json=state.json)


def _require_model(run: Any, folder: Path) -> None:
    from deepinfer_core.assembly.fingerprint import model_fingerprint
    from deepinfer_core.assembly.model_card import read_model_card

    if not os.path.isdir(folder):
        read_model_card(folder)  # says what is wrong with it
    found = model_fingerprint(folder)
    if found != run.get("fingerprint"):
        raise ModelMismatch(
            f"{folder} is not the model that the results were made with",
            reason=f"its fingerprint is {found}, theirs is {run.get('fingerprint')}; they name {_named(run)}",
            remedy="give the folder of that model with --model",
            details={"fingerprint": found, "recorded": run.get("fingerprint")},
        )


def _named(run: Any) -> str:
    return "the small checkpoint of a plugin" if run.get("model") is None else str(run["model"])


def _replay(llm: LLM, recorded: Results) -> list[Difference]:
    """The differences, in the order of the lines."""
    from deepinfer_core.cli.progress import Progress
    from deepinfer_core.replay import compare

    run = llm.run(_inputs(recorded.requests))
    progress = Progress(enabled=True)
    differences: list[Difference] = []
    try:
        for request in run:
            progress.ended(request, run.count)
            if not request.head.open_samples:
                differences += compare(recorded.requests[request.index], request.output().outputs)
    finally:
        run.stop()
        progress.close()
    return sorted(differences, key=lambda item: (item.line, item.sample))


def _inputs(requests: tuple[RecordedRequest, ...]) -> Iterator[PromptInput]:
    from attrs import evolve

    from deepinfer_core.requests.prompts import PromptInput

    for request in requests:
        params = request.params
        if not any(answer.is_whole for answer in request.answers):  # cut: no more than it had is compared
            longest = max(len(answer.token_ids) for answer in request.answers)
            params = evolve(params, max_tokens=longest, min_tokens=min(params.min_tokens, longest))
        yield PromptInput(
            request.prompt_token_ids,
            params,
            request.request_id,
            request.line,
            stops_between=request.stops_between,
        )


def _report(
    recorded: Results, differences: list[Difference], environment: list[str], llm: LLM, *, as_json: bool
) -> int:
    from deepinfer_core.cli.json_lines import json_line

    answers = sum(len(request.answers) for request in recorded.requests)
    equal = answers - len(differences)
    if as_json:
        record = {
            "equal": not differences,
            "answers": answers,
            "equal_answers": equal,
            "skipped_lines": list(recorded.skipped),
            "differences": [difference.as_record() for difference in differences],
            "environment": environment,
            **({"emulated": True} if llm.built.is_emulated else {}),
        }
        sys.stdout.buffer.write(json_line(record))
    else:
        if recorded.skipped:
            lines = ", ".join(map(str, recorded.skipped))
            sys.stderr.write(f"deepinfer: not repeated, because they have no tokens: lines {lines}\n")
        text = f"{equal} of {answers} answers are equal\n"
        if differences:
            text += f"first difference: {differences[0].text(llm.get_tokenizer())}\n"
        sys.stdout.write(text)
    sys.stdout.flush()
    return EXIT_MISMATCH if differences else EXIT_OK
