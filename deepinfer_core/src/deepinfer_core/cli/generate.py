"""``deepinfer generate``: prompts in, text or JSON lines out (``spec/sampling.md`` 5.2).

Standard output carries results only. Everything else, the backend line, warnings, progress and errors, goes to standard
error. Each input has one result, in order, also when it fails; the exit status is then 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from io import BufferedWriter
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import click

from deepinfer_core.cli.chat_options import thinking_options, tool_options
from deepinfer_core.cli.output_file import output_file
from deepinfer_core.cli.sampling_options import DEFAULT_MAX_TOKENS, given_sampling, sampling_options
from deepinfer_core.cli.state import CommandState, common_options, setting_options, text_of
from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED, CommandUsageError, InvalidInputFile, OutputError
from deepinfer_core.settings import option_name

if TYPE_CHECKING:
    from deepinfer_core.chat import ChatOptions
    from deepinfer_core.cli.results import View
    from deepinfer_core.config import EngineConfig
    from deepinfer_core.llm import LLM
    from deepinfer_core.parameters.sampling_params import SamplingParams
    from deepinfer_core.requests.prompts import PromptInput
    from deepinfer_core.requests.request import Request
    from deepinfer_core.requests.runs import Run

SETTINGS = (
    "backend",
    "model",
    "device",
    "emulate",
    "seed",
    "numeric_mode",
    "kv_memory",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_chunk",
    "chunked_prefill",
    "target_itl_ms",
    "block_size",
    "prefix_cache",
    "prefix_replay",
    "replay_mode",
    "keep_tokens",
    "cache_formats",
    "num_threads",
    "sampler",
    "grammar_engine",
    "so_builder_cpus",
    "so_timeout_s",
    "so_cache_bytes",
    "draft_tokens",
    "draft_schedule",
    "decode_token_blacklist",
    "sampler_force_topk",
    "sum_smaller",
    "confidence_temperature",
    "max_backtracking_tokens",
    "verify",
    "deterministic",
    "overlap",
    "graphs",
    "graphs_at_start",
    "validation",
    "model_plugin",
    "dp",
    "cp",
    "ep",
    "observe.metrics_port",
    "observe.metrics_host",
    "observe.metrics_public",
    "observe.step_log",
    "observe.step_log_interval",
    "observe.trace_file",
)


@click.command("generate")
@click.argument("prompts", nargs=-1)
@click.option("--prompts-file", metavar="FILE", help="Prompts in a file, - for standard input; a line may have 16 MiB.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["auto", "text", "jsonl"]),
    default="auto",
    help="Of the file: one prompt per line, or one JSON object per line; auto goes by the extension.",
)
@click.option(
    "--messages", metavar="FILE", help="Conversations, one JSON object with messages per line, - for standard input."
)
@click.option(
    "--out",
    metavar="FILE",
    callback=output_file,
    help="Write results there, as JSON lines, each as soon as it is complete; - for standard output.",
)
@click.option(
    "--stream/--no-stream", default=None, help="Write text as it comes; the default for one prompt on a terminal."
)
@thinking_options
@tool_options
@sampling_options
@setting_options(*SETTINGS)
@common_options
@click.pass_context
def generate(
    context: click.Context,
    prompts: tuple[str, ...],
    prompts_file: str | None,
    form: Literal["auto", "text", "jsonl"],
    messages: str | None,
    out: str | None,
    stream: bool | None,
) -> int:
    """Generate text for PROMPTS, or for the lines of a file; PROMPTS of - reads lines from standard input.

    With --messages each line is a conversation, and its result is the answer: content, and with --json or in a file
    also reasoning and calls of tools.

    Without --max-tokens an answer ends after 128 tokens at the latest. With --json, or in a file, each result is one
    JSON object per line; in a file it also has what deepinfer replay needs. Exit status: 0 ok, 1 some prompts failed, 2
    usage, 3 backend, 4 model, 74 output not written, 130 interrupted.
    """
    from deepinfer_core.parameters.sampling_params import SamplingParams

    state = context.ensure_object(CommandState)
    params = SamplingParams(max_tokens=DEFAULT_MAX_TOKENS).updated(given_sampling(context))
    prompts = tuple(map(text_of, prompts))
    options = _chat_options(context, messages)
    source = _source(prompts, prompts_file, messages)
    config = state.resolve()
    _require_apart(out, config)
    with ExitStack() as stack:
        lines = _lines(stack, source)
        kind = _form(source, form, is_chat=options is not None)
        target = _target(stack, out, lines)
        llm = stack.enter_context(load_llm(config, params))
        inputs = _conversations(llm, lines, params, options) if options else _inputs(prompts, lines, kind, params)
        as_json = state.json or target is not None
        many = source is not None or len(prompts) > 1
        if stream is None:
            stream = not as_json and not many and sys.stdout.isatty()
        run = llm.run(
            inputs,
            streaming=stream and target is None,
            is_ready=getattr(lines, "is_ready", None),
            on_held_interrupt=_say_that_it_waits,
        )
        try:
            view = _view(llm, is_chat=options is not None, repeatable=target is not None)
            return _generate(run, target, view, trace=state.trace, as_json=as_json, stream=stream, headers=many)
        finally:
            if config.prefix_cache:
                sys.stderr.write(f"deepinfer: {llm.prefix_cache_report}\n")
            if config.draft_tokens:
                sys.stderr.write(f"deepinfer: {llm.draft_report}\n")
            if llm.grammar_report.was_used:
                sys.stderr.write(f"deepinfer: {llm.grammar_report}\n")


def _chat_options(context: click.Context, messages: str | None) -> ChatOptions | None:
    """How conversations are answered; None: there are prompts."""
    from deepinfer_core.cli.chat_options import given_chat, given_names

    if messages is None:
        if names := given_names(context):
            raise CommandUsageError(f"{names[0]} is for conversations", remedy="give --messages too, or leave it out")
        return None
    from deepinfer_core.chat import ChatOptions
    from deepinfer_core.chat.recipe import recipe

    recipe()  # before the weights: where it is missing nothing can be answered
    return ChatOptions(**given_chat(context))


def _conversations(
    llm: LLM, lines: Iterable[bytes], params: SamplingParams, options: ChatOptions
) -> Iterator[PromptInput]:
    from deepinfer_core.chat.inputs import read_conversations

    _ = llm.chat_encoder  # a model that cannot chat is an error of the run, not of a line
    return read_conversations(lines, params, options, llm.encode_chat)


def _source(prompts: tuple[str, ...], prompts_file: str | None, messages: str | None) -> str | None:
    """The file to read, ``-`` for standard input; None: prompts are arguments."""
    given = {"prompts as arguments": prompts, "--prompts-file": prompts_file, "--messages": messages}
    names = [name for name, value in given.items() if value not in (None, ())]
    if len(names) > 1:
        raise CommandUsageError(f"{' and '.join(names)} were both given", remedy="leave one of the two out")
    if messages is not None:
        return messages
    if prompts == ("-",):
        return "-"
    if prompts_file is None and not prompts:
        raise CommandUsageError(
            "no prompts were given", remedy='run: deepinfer generate "import os", or --prompts-file FILE'
        )
    return prompts_file


def _lines(stack: ExitStack, source: str | None) -> Iterable[bytes]:
    """The lines of the prompts file; none for prompts that are arguments."""
    if source is None:
        return ()
    from deepinfer_core.cli.lines import LineReader, told_if_it_waits

    if source == "-":
        try:
            return LineReader(sys.stdin.fileno())
        except OSError:  # a stream in memory
            return sys.stdin.buffer
    try:
        with told_if_it_waits(Path(source)):
            opened = stack.enter_context(Path(source).open("rb", buffering=0))  # noqa: SIM115  # the stack closes it
    except OSError as err:
        raise InvalidInputFile(
            f"cannot read the prompts file {source}",
            reason=err.strerror or str(err),
            remedy="check --prompts-file or --messages",
            details={"path": source},
        ) from err
    return LineReader(opened.fileno(), f"the prompts file {source}")


def _form(source: str | None, form: str, *, is_chat: bool) -> str:
    if is_chat and form != "auto":
        raise CommandUsageError("--format is for a prompts file", remedy="leave it out: conversations are JSON lines")
    if source is None:
        if form != "auto":
            raise CommandUsageError("--format is for a prompts file", remedy="give --prompts-file too, or leave it out")
        return "arguments"
    if form != "auto":
        return form
    return "jsonl" if Path(source).suffix in (".jsonl", ".ndjson", ".json") else "text"


def _inputs(
    prompts: tuple[str, ...], lines: Iterable[bytes], form: str, params: SamplingParams
) -> Iterator[PromptInput]:
    from deepinfer_core.requests.prompts import inputs_of, read_jsonl, read_text

    match form:
        case "jsonl":
            return read_jsonl(lines, params)
        case "text":
            return read_text(lines, params)
        case _:
            return inputs_of(list(prompts), params)


def _require_apart(out: str | None, config: EngineConfig) -> None:
    """Results and what is observed are two files: neither could be read if they were one."""
    for key in ("observe.step_log", "observe.trace_file"):
        path = config.get(key)
        if out is None or path is None or os.path.realpath(out) != os.path.realpath(path):
            continue
        if os.path.isfile(out) or not os.path.exists(out):  # a device keeps neither
            raise CommandUsageError(
                f"--out and {option_name(key)} are both {out}",
                reason="lines of the one would stand between lines of the other",
                remedy="give each a file of its own",
                details={"path": out},
            )


def _target(stack: ExitStack, out: str | None, lines: Iterable[bytes]) -> BufferedWriter | None:
    """The file of ``--out``, opened before the model loads; its old content goes when the first result is due."""
    from deepinfer_core.cli.lines import LineReader
    from deepinfer_core.cli.streams import open_results, same_file

    target = None
    if out is not None:
        try:
            target = stack.enter_context(open_results(out))
        except OSError as err:
            raise OutputError(
                f"cannot write {out}", reason=err.strerror or str(err), remedy="check --out", details={"path": out}
            ) from err
    if isinstance(lines, LineReader):
        try:
            written = sys.stdout.fileno() if target is None else target.fileno()
        except OSError:  # a stream in memory
            return target
        if same_file(lines.fileno(), written):
            name = "standard output" if target is None else "--out"
            raise CommandUsageError(
                f"{name} is the prompts file",
                reason="the results would overwrite prompts, or be read as prompts",
                remedy="give another file to --out",
            )
    return target


def _say_that_it_waits() -> None:
    """Straight to the descriptor: this runs in a signal handler, maybe inside a write to ``sys.stderr``."""
    try:
        after_echo = b"\n" if os.isatty(2) else b""
        os.write(2, after_echo + b"deepinfer: finishing the step; press Ctrl-C again to stop now\n")
    except OSError:  # nobody is there to read it
        return


def load_llm(config: EngineConfig, params: SamplingParams) -> LLM:
    """The model of ``config``, once ``params`` are known to fit it; warnings go to standard error."""
    from deepinfer_core.assembly.announcing import announce
    from deepinfer_core.assembly.assemble import assemble
    from deepinfer_core.assembly.native_core import load_native
    from deepinfer_core.interrupts import raise_swallowed
    from deepinfer_core.llm import LLM

    load_native()  # before the weights: a wrong build should not cost that time
    llm = LLM.from_assembly(assemble(config, structured=params.structured is not None))
    for line in llm.built.plan.warnings:
        announce(f"deepinfer: {line}")
    try:
        raise_swallowed()
        llm.check(params)
    except BaseException:
        llm.close()
        raise
    return llm


def _view(llm: LLM, *, is_chat: bool, repeatable: bool) -> View:
    """``repeatable``: with what ``deepinfer replay`` needs, in a file of results."""
    from deepinfer_core.cli.results import ChatView, RepeatableView, View

    view = ChatView() if is_chat else View()
    if not repeatable:
        return view
    from deepinfer_core.replay import describe_run

    return RepeatableView(view, describe_run(llm))


def _generate(
    run: Run,
    target: BufferedWriter | None,
    view: View,
    *,
    trace: Callable[[BaseException], None],
    as_json: bool,
    stream: bool,
    headers: bool,
) -> int:
    from deepinfer_core.cli.progress import Progress
    from deepinfer_core.cli.results import OrderedWriter
    from deepinfer_core.cli.streams import empty
    from deepinfer_core.interrupts import HeldInterrupt

    if target is not None:
        empty(target)
    streaming = stream and target is None
    output: BinaryIO = target if target is not None else sys.stdout.buffer
    writer = OrderedWriter(output, "json" if as_json else "text", streaming=streaming, headers=headers, view=view)
    progress = Progress(enabled=target is not None or not sys.stdout.isatty())
    failed = 0
    try:
        for request in run:
            if request.finished:
                progress.ended(request, run.count)
                failed += _report_failure(request, trace)
            with HeldInterrupt():  # a line is written whole and once
                writer.news(request)
    except KeyboardInterrupt:
        unfinished = run.stop()
        progress.close()
        writer.drain(unfinished)
        raise
    finally:
        run.stop()
        progress.close()
    return EXIT_SOME_FAILED if failed else EXIT_OK


def _report_failure(request: Request, trace: Callable[[BaseException], None]) -> bool:
    """Say on standard error why a sample failed; its record says so too."""
    if request.error is None:
        return not request.completion().ok
    if request.sample and request.error is request.head.error:
        return True  # of the prompt as a whole, and said once
    where = f"line {request.line}" if request.line is not None else f"prompt {request.index + 1}"
    if request.sample or (len(request.samples) > 1 and any(r.error is not request.error for r in request.samples)):
        where += f", sample {request.sample + 1}"
    trace(request.error)
    text = "\n".join(f"  {line.strip()}" if i else line for i, line in enumerate(str(request.error).splitlines()))
    sys.stderr.write(f"deepinfer: {where}: {text}\n")
    return True
