"""``deepinfer eval generate``: the answers to a data set, into a file that a later run can go on with."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from deepinfer_core.bounded_file import read_bounded_text
from deepinfer_core.commands import (
    ENGINE_SETTINGS,
    CommandState,
    common_options,
    given_chat,
    given_sampling,
    json_line,
    load_llm,
    output_file,
    sampling_options,
    setting_options,
    thinking_options,
)
from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED, CommandUsageError, InvalidInputFile
from deepinfer_eval.answer_stream import is_standard_output, open_answers
from deepinfer_eval.answers import Header
from deepinfer_eval.asking import PLACE, Asker, still_to_ask
from deepinfer_eval.dataset import read_dataset
from deepinfer_eval.resuming import require_same_parts, require_same_run
from deepinfer_eval.scorer_names import as_record, scorer_of_options

if TYPE_CHECKING:
    from deepinfer_core.chat import ChatOptions
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.parameters.named_parts import NamedPart
    from deepinfer_eval.dataset import Dataset

DEFAULT_MAX_TOKENS = 2048
"""Tokens of an answer without ``--max-tokens``; a chat has the defaults of ``LLM.chat``."""
NOT_KEPT = ("logprobs", "top_logprobs", "prompt_logprobs", "forced_token_ids")


@click.command("generate")
@click.argument("dataset", metavar="DATASET")
@click.option(
    "--out",
    metavar="FILE",
    callback=output_file,
    required=True,
    help="The file of answers; what it has is not asked for again.",
)
@click.option("--scorer", metavar="NAME", help="Check the expected answers first; eval score then takes this scorer.")
@click.option("--scorer-params", metavar="JSON", help="Parameters of the scorer, as an object.")
@click.option("--template", metavar="FILE", help=f"The prompt: a text in which {PLACE} stands for the question.")
@click.option("--chat", "is_chat", is_flag=True, help="Ask as a user's message; the answer is the content behind it.")
@thinking_options
@sampling_options
@setting_options(*ENGINE_SETTINGS)
@common_options
@click.pass_context
def generate(
    context: click.Context,
    dataset: str,
    out: str,
    scorer: str | None,
    scorer_params: str | None,
    template: str | None,
    is_chat: bool,
) -> int:
    """Answer each item of DATASET, -n times, into the file of --out, each answer as soon as it is whole.

    A pipe or a device gets them too, in order; no run goes on from there. Where --out is standard output, the line
    that counts the answers goes to standard error.

    DATASET has one JSON object per line: question, answer, and maybe id and scorer. The same command goes on where one
    stopped, whatever stopped it: no answer is lost or asked for twice, and each has the seed that it would have had.
    Without --max-tokens an answer ends after 2048 tokens at the latest, in a chat after as many as LLM.chat allows.
    Exit status: 0 all answers are there, 1 some failed, 2 usage or a line that is no item, 3 backend, 4 model, 5 the
    file is of another run, 74 output not written, 130 interrupted.
    """
    from deepinfer_core.parameters.sampling_params import SamplingParams

    state = context.ensure_object(CommandState)
    given = _given(context)
    chat = _chat_options(context, is_chat)
    named = scorer_of_options(scorer, scorer_params)
    items = read_dataset(dataset)
    params = SamplingParams(max_tokens=DEFAULT_MAX_TOKENS).updated(given)
    config = state.resolve()
    asker = Asker(items, params, config.seed or 0, _template(template), chat, has_limit="max_tokens" in given)
    _check_expected(config, items, named)
    with ExitStack() as stack:
        journal = open_answers(out)
        stack.callback(journal.close)
        parts: dict[str, Any] = {"dataset": items.as_record(), "samples": params.n, "parameters": _parameters(asker)}
        begun = journal.found.header
        if begun is not None:
            require_same_parts(out, begun, parts)
        asks = still_to_ask(len(items.items), params.n, journal.found.done)
        written = failed = 0
        if asks:
            from deepinfer_core.replay import describe_run
            from deepinfer_eval.generating import Generation

            llm = stack.enter_context(load_llm(config, params))
            if chat is not None:
                _ = llm.chat_encoder  # a model that cannot chat is an error of the run, not of an item
            run = describe_run(llm)
            for phrase in [] if begun is None else require_same_run(out, begun, run):
                sys.stderr.write(f"deepinfer: not as the file was begun: {phrase}\n")
            journal.begin(Header(**parts, run=run, scorer=as_record(named)))
            generation = Generation(llm, asker, journal, state.trace)
            try:
                generation.run(asks)
            finally:
                written, failed = generation.written, generation.failed
                _tell(state, config, len(journal.found.done) + written, asker, written, failed, out)
        else:
            _tell(state, config, len(journal.found.done), asker, 0, 0, out)
    return EXIT_SOME_FAILED if failed else EXIT_OK


def _given(context: click.Context) -> dict[str, object]:
    given = given_sampling(context)
    for name in NOT_KEPT:
        if name in given:
            raise CommandUsageError(
                f"--{name.replace('_', '-')} is of no use here",
                reason="a file of answers has no log-probabilities, and forced tokens are no answer",
                remedy="leave it out, or use deepinfer generate",
            )
    return given


def _chat_options(context: click.Context, is_chat: bool) -> ChatOptions | None:
    given: dict[str, Any] = given_chat(context)
    if not is_chat:
        if given:
            raise CommandUsageError(f"--{next(iter(given))} is for chats", remedy="give --chat too, or leave it out")
        return None
    from deepinfer_core.chat import ChatOptions
    from deepinfer_core.chat.recipe import recipe

    recipe()  # before the weights: where it is missing nothing can be asked
    return ChatOptions(**given)


def _template(path: str | None) -> str:
    if path is None:
        return PLACE
    try:
        text = read_bounded_text(path)
    except (OSError, UnicodeDecodeError) as err:
        reason = getattr(err, "strerror", None) or str(err)
        raise InvalidInputFile(
            f"cannot read the template {path}", reason=reason, remedy="check --template", details={"path": path}
        ) from err
    if PLACE not in text:
        raise InvalidInputFile(
            f"the template {path} has no {PLACE}",
            reason="every item would get the same prompt",
            remedy=f"write {PLACE} where the question belongs",
            details={"path": path},
        )
    return text


def _check_expected(config: EngineConfig, items: Dataset, named: NamedPart | None) -> None:
    """Before anything is generated: an answer that cannot be scored need not be made."""
    if named is None and all(item.scorer is None for item in items.items):
        return
    from attrs import evolve

    from deepinfer_core.plugins.manager import PluginManager
    from deepinfer_eval.scoring import Scorers

    scored = [item for item in items.items if named is not None or item.scorer is not None]
    Scorers(PluginManager.from_config(config), named).check(evolve(items, items=tuple(scored)))


def _parameters(asker: Asker) -> dict[str, Any]:
    """What decides on the answers beside the model, JSON-serialisable; the number of samples stands apart."""
    from attrs import asdict, evolve

    from deepinfer_core.replay.run import params_record

    record: dict[str, Any] = params_record(evolve(asker.params, n=1, seed=None), None)
    record["seed"] = asker.base_seed
    if asker.template != PLACE:
        record["template"] = asker.template
    if asker.chat is not None:
        record["chat"] = asdict(asker.chat) | {"tools": []}
        if not asker.has_limit:
            del record["max_tokens"]
    return record


def _tell(
    state: CommandState, config: EngineConfig, there: int, asker: Asker, written: int, failed: int, out: str
) -> None:
    total = asker.params.n * len(asker.dataset.items)
    stream = sys.stderr if is_standard_output(out) else sys.stdout
    if state.json:
        record: dict[str, object] = {"answers": there, "total": total, "written": written, "failed": failed, "out": out}
        if config.emulate:
            record["emulated"] = True
        stream.write(json_line(record).decode("utf-8"))
    else:
        text = f"{there} of {total} answers in {out}, {written} of them new"
        stream.write(text + (f"; {failed} failed\n" if failed else "\n"))
    stream.flush()
