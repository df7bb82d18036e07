"""The command line. :func:`main` turns every failure into three lines on standard error and an exit status.

::

    0 ok              2 usage              4 model or configuration     70 internal      130 interrupted
    1 some failed     3 backend refusal    5 mismatch                   74 output        141 reader of the pipe left
                                                                                         143 ended by SIGTERM
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer_core.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_READER_LEFT,
    EXIT_TERMINATED,
    CommandUsageError,
    DeepInferError,
    OutputError,
)

if TYPE_CHECKING:
    import click

    from deepinfer_core.cli.state import CommandState

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    :param argv: Arguments without the program name; None: those of the process, which ends with this call. SIGINT is
        then ignored once one has ended the command, so that a further one leaves no traceback of the interpreter's end;
        until then SIGTERM ends it as Ctrl-C does.
    :returns: The exit status.
    """
    try:
        from deepinfer_core.assembly.announcing import each_line_once
        from deepinfer_core.cli.streams import standard_streams
        from deepinfer_core.cli.warned import plain_warnings

        with standard_streams(), plain_warnings(), each_line_once():
            return _main(list(sys.argv[1:] if argv is None else argv), ends_process=argv is None)
    except KeyboardInterrupt:  # between any two lines of the handlers below
        return EXIT_INTERRUPTED


def _main(arguments: list[str], *, ends_process: bool) -> int:
    import click

    from deepinfer_core.cli.root import root
    from deepinfer_core.cli.state import CommandState
    from deepinfer_core.cli.streams import silence_stdout
    from deepinfer_core.interrupts import NotedInterrupt

    state = CommandState()
    interrupt = NotedInterrupt()
    if ends_process:
        interrupt.install()
    try:
        status = _run(root, list(arguments), state)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        silence_stdout()
        return EXIT_READER_LEFT
    except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
        if interrupt.came or isinstance(exc, (KeyboardInterrupt, click.Abort)):
            if ends_process:
                _ignore_interrupts()
            sys.stderr.write(f"deepinfer: {'terminated' if interrupt.terminates else 'interrupted'}\n")
            return EXIT_TERMINATED if interrupt.terminates else EXIT_INTERRUPTED
        error = _typed(exc, arguments, state)
        if isinstance(error, OutputError):
            silence_stdout()
        return _report(error, state, as_json=state.json or _asks_for_json(arguments))


def _typed(exc: BaseException, arguments: Sequence[str], state: CommandState) -> DeepInferError:
    import click

    if isinstance(exc, DeepInferError):
        return exc
    if isinstance(exc, click.UsageError):
        return _usage_error(exc, arguments)
    if isinstance(exc, click.ClickException):
        return CommandUsageError(exc.format_message())
    if state.owner is not None:
        from deepinfer_core.plugins.failure import plugin_failure

        return plugin_failure(state.owner, "its command", exc)
    return _internal(exc)


def _ignore_interrupts() -> None:
    import signal
    import threading

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether ``--json`` is among the options, for an error that came before click had read that far."""
    from deepinfer_core.cli.root import COMMANDS, option_arity, root

    arity = option_arity(root)
    words = iter(arguments)
    for word in words:
        if word == "--":
            return False
        if word == "--json":
            return True
        if word in COMMANDS:
            arity = {**arity, **option_arity(root, word)}
        for _ in range(arity.get(word, 0)):  # a value may look like an option
            next(words, None)
    return False


def _run(root: click.Command, arguments: list[str], state: CommandState) -> int:
    """The command's status. Not ``Command.main``, which would print in click's own format and swallow EPIPE."""
    import click

    try:
        with root.make_context("deepinfer", arguments, obj=state) as context:
            result = root.invoke(context)
            return result if isinstance(result, int) and not isinstance(result, bool) else EXIT_OK
    except click.exceptions.Exit as exc:
        return exc.exit_code


def _report(error: DeepInferError, state: CommandState, *, as_json: bool) -> int:
    """Print the error on standard error: three lines, or one JSON object."""
    state.trace(error)
    if as_json:
        import json

        sys.stderr.write(json.dumps({"error": error.as_record()}, default=str) + "\n")
    else:
        sys.stderr.write(f"deepinfer: {error}\n")
    return error.exit_status


def _usage_error(exc: click.UsageError, arguments: Sequence[str]) -> CommandUsageError:
    """click's complaint in our format, with the nearest option for a misspelt one."""
    import click

    from deepinfer_core.cli.root import COMMANDS
    from deepinfer_core.settings import did_you_mean

    if exc.ctx is not None:
        path = exc.ctx.command_path
    else:  # an option without its value: click does not say whose
        path = " ".join(["deepinfer", *[word for word in arguments if word in COMMANDS][:1]])
    remedy = f"run: {path} --help"
    if isinstance(exc, click.exceptions.NoArgsIsHelpError) and exc.ctx is not None:  # a group, typed alone
        command = exc.ctx.command
        names = command.list_commands(exc.ctx) if isinstance(command, click.Group) else []
        return CommandUsageError(f"{path} needs a command", reason=f"commands: {', '.join(names)}", remedy=remedy)
    if isinstance(exc, click.NoSuchOption):
        params = exc.ctx.command.get_params(exc.ctx) if exc.ctx is not None else []
        known = [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]
        what = f"no option {exc.option_name!r}"
        elsewhere = _of_inner(exc.option_name, path, exc.ctx) or _elsewhere(exc.option_name, path)
        if elsewhere is not None:
            return CommandUsageError(what, reason=elsewhere[0], remedy=elsewhere[1])
        what += did_you_mean(exc.option_name, known)
        return CommandUsageError(what, reason=f"{path} has no such option", remedy=remedy)
    text = " ".join(exc.format_message().split()).rstrip(".")  # click puts each choice on a line
    return CommandUsageError(text[:1].lower() + text[1:], reason=f"raised while reading: {path}", remedy=remedy)


def _of_inner(option: str, path: str, context: click.Context | None) -> tuple[str, str] | None:
    """Reason and remedy for an option before the command that has it: ``deepinfer bench --batch 1 decode``."""
    import click

    if context is None or not isinstance(context.command, click.Group) or context.parent is None:
        return None
    group = context.command
    inner = [(name, group.get_command(context, name)) for name in group.list_commands(context)]
    names = [
        name
        for name, command in inner
        if command is not None
        for param in command.params
        if option in (*param.opts, *param.secondary_opts)
    ]
    if not names:
        return None
    return f"it belongs behind the command: {', '.join(names)}", f"run: {path} {names[0]} {option} ..."


def _elsewhere(option: str, path: str) -> tuple[str, str] | None:
    """Reason and remedy for an option that the command at ``path`` lacks, but which means something elsewhere."""
    from deepinfer_core.cli.root import COMMANDS, option_arity, root
    from deepinfer_core.config import settings_by_key

    commands = [f"deepinfer {name}" for name in sorted(COMMANDS) if option in option_arity(root, name)]
    if commands:
        *others, last = commands
        named, have = (f"{', '.join(others)} and {last}", "have") if others else (last, "has")
        shown = " or ".join(f"{command} {option} ..." for command in commands)
        return f"{path} has no such option; {named} {have}", f"run: {shown}"
    key = option.removeprefix("--").removeprefix("no-").replace("-", "_")
    declared = settings_by_key().get(key)
    if declared is None:
        return None
    return f"{key} is a setting without a flag", f"set {declared.env_name(key)}, or {key} in a file given to --config"


def _internal(exc: BaseException) -> DeepInferError:
    """An unexpected exception, in one line; the traceback is for ``--debug``."""
    from deepinfer_core.plugins.failure import blame, exception_text

    error = DeepInferError(
        exception_text(exc),
        reason=f"raised at {blame(exc)}; this is a fault of DeepInfer",
        remedy="use --debug for the traceback, and report it",
    )
    error.__cause__ = exc
    return error
