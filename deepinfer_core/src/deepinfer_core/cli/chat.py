"""``deepinfer chat``: a conversation at the terminal, or from the lines of standard input.

Standard output carries the answers only. Reasoning is shown on standard error if that is a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from deepinfer_core.cli.chat_options import given_chat, thinking_options
from deepinfer_core.cli.generate import SETTINGS, load_llm
from deepinfer_core.cli.sampling_options import given_sampling, sampling_options
from deepinfer_core.cli.state import CommandState, common_options, setting_options, text_of
from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED, CommandUsageError, DeepInferError

if TYPE_CHECKING:
    from deepinfer_core.chat import ChatChunk, ChatOutput
    from deepinfer_core.cli.chat_session import ChatSession

DIM, PLAIN = "\033[2m", "\033[0m"
HELP = "/reset begins a new conversation, /exit or Ctrl-D ends the chat, Ctrl-C ends an answer\n"


@click.command("chat")
@click.option("--system", metavar="TEXT", help="What the model is told before the first turn.")
@thinking_options
@sampling_options
@setting_options(*SETTINGS)
@common_options
@click.pass_context
def chat(context: click.Context, system: str | None) -> int:
    """Talk with a model. Answers stream to standard output; each turn sees those before it.

    At a terminal, Ctrl-C ends the answer and not the program, Ctrl-D or /exit ends the chat, and /reset forgets the
    turns so far. From a pipe or a file, each line of standard input is the next turn of one conversation, /reset begins
    another one, and Ctrl-C ends the program. With --json each answer is one JSON object per line; its turn counts from
    1. Exit status: 0 ok, 1 some turns of a pipe failed, 2 usage, 3 backend, 4 model, 130 interrupted.
    """
    from deepinfer_core.chat import ChatOptions
    from deepinfer_core.chat.recipe import recipe
    from deepinfer_core.cli.chat_reader import PipedTurns, TypedTurns
    from deepinfer_core.cli.chat_session import ChatSession
    from deepinfer_core.parameters.sampling_params import SamplingParams

    state = context.ensure_object(CommandState)
    sampling, options = given_sampling(context), given_chat(context)
    params = SamplingParams(max_tokens=2**31 - 1).updated(sampling)
    if params.n != 1:
        raise CommandUsageError("a chat goes on from one answer", remedy="leave --num-samples out")
    ChatOptions(**options)
    recipe()  # before the weights: where it is missing nothing can be answered
    config = state.resolve()
    is_typed = sys.stdin.isatty()
    with load_llm(config, params) as llm:
        _ = llm.chat_encoder
        session = ChatSession(
            llm, system=None if system is None else text_of(system), sampling=sampling, options=options
        )
        if is_typed:
            sys.stderr.write(HELP)
        return _talk(session, TypedTurns() if is_typed else PipedTurns(), state, is_typed=is_typed)


def _talk(session: ChatSession, turns: Iterable[str | DeepInferError], state: CommandState, *, is_typed: bool) -> int:
    failed = asked = 0
    for turn in turns:
        if isinstance(turn, DeepInferError):
            failed += 1
            asked += 1
            _report(turn, asked, state)
        elif turn.strip() == "/exit":
            break
        elif turn.strip() == "/reset":
            session.reset()
        elif turn.strip() == "/help":
            sys.stderr.write(HELP)
        elif turn.strip():
            asked += 1
            show = _Show(asked, as_json=state.json)
            output = session.ask(turn, show.chunk, keep_on_interrupt=is_typed)
            show.end(output, is_full=output is not None and session.is_full(output))
            if output is not None and output.error is not None:
                failed += 1
                _report(output.error, asked, state)
    return EXIT_SOME_FAILED if failed and not is_typed else EXIT_OK


def _report(error: DeepInferError, turn: int, state: CommandState) -> None:
    state.trace(error)
    sys.stderr.write(f"deepinfer: {error}\n")
    if state.json:
        _write_json({"turn": turn, "error": error.as_record()})


def _write_json(record: dict[str, object]) -> None:
    from deepinfer_core.cli.json_lines import json_line

    sys.stdout.flush()
    sys.stdout.buffer.write(json_line(record))
    sys.stdout.buffer.flush()


class _Show:
    """Writes one answer as it comes. ``turn`` joins a JSON line to its question: 1 is the first."""

    def __init__(self, turn: int, *, as_json: bool) -> None:
        self._turn = turn
        self._as_json = as_json
        self._thinks = False
        self._wrote = False

    def chunk(self, chunk: ChatChunk) -> None:
        if self._as_json:
            return
        if chunk.reasoning and sys.stderr.isatty():
            sys.stderr.write((DIM if not self._thinks else "") + chunk.reasoning)
            sys.stderr.flush()
            self._thinks = True
        if chunk.content:
            self._end_thinking()
            self._wrote = True
            sys.stdout.buffer.write(chunk.content.encode("utf-8"))
            sys.stdout.buffer.flush()

    def end(self, output: ChatOutput | None, *, is_full: bool) -> None:
        """``output``: the whole answer; None: Ctrl-C cut it. ``is_full``: no answer goes further."""
        self._end_thinking()
        if output is None:
            sys.stderr.write("\ndeepinfer: the answer was ended\n")
        elif self._as_json:
            if output.error is None:
                _write_json({"turn": self._turn, **output.as_record()})
            return
        if self._wrote or (output is not None and output.error is None):
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()
        if output is not None and output.finish_reason == "length":
            told = "where the conversation reached --max-model-len; /reset begins another"
            sys.stderr.write(f"deepinfer: the answer was cut {told if is_full else 'at its limit; see --max-tokens'}\n")

    def _end_thinking(self) -> None:
        if self._thinks:
            self._thinks = False
            sys.stderr.write(f"{PLAIN}\n\n")
            sys.stderr.flush()
