"""The command line. :func:`main` turns every failure into three lines on standard error and an exit status.

::

    0 ok              2 usage              4 model or configuration     70 internal       141 reader of the pipe left
    1 some failed     3 backend refusal    5 mismatch                   130 interrupted
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from deepinfer_core.errors import EXIT_INTERRUPTED, EXIT_OK, CommandUsageError, DeepInferError

if TYPE_CHECKING:
    import click

    from deepinfer_core.cli.state import CommandState

EXIT_BROKEN_PIPE = 128 + 13  # what a shell reports for a process that SIGPIPE ended

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    :param argv: Arguments without the program name; None: those of the process.
    :returns: The exit status.
    """
    import click

    from deepinfer_core.cli.root import root
    from deepinfer_core.cli.state import CommandState

    state = CommandState()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _run(root, list(arguments), state)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _silence_stdout()
        return EXIT_BROKEN_PIPE
    except (KeyboardInterrupt, click.Abort):
        sys.stderr.write("deepinfer: interrupted\n")
        return EXIT_INTERRUPTED
    except DeepInferError as exc:
        return _report(exc, state)
    except click.UsageError as exc:
        return _report(_usage_error(exc, arguments), state)
    except click.ClickException as exc:
        return _report(CommandUsageError(exc.format_message()), state)
    except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
        return _report(_internal(exc), state)


def _run(root: click.Command, arguments: list[str], state: CommandState) -> int:
    """The command's status. Not ``Command.main``, which would print in click's own format and swallow EPIPE."""
    import click

    try:
        with root.make_context("deepinfer", arguments, obj=state) as context:
            result = root.invoke(context)
            return result if isinstance(result, int) and not isinstance(result, bool) else EXIT_OK
    except click.exceptions.Exit as exc:
        return exc.exit_code


def _report(error: DeepInferError, state: CommandState) -> int:
    """Print the error on standard error: three lines, or one JSON object with ``--json``."""
    if state.debug:
        import traceback

        traceback.print_exception(error)
    if state.json:
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
    if isinstance(exc, click.NoSuchOption):
        params = exc.ctx.command.get_params(exc.ctx) if exc.ctx is not None else []
        known = [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("--")]
        what = f"no option {exc.option_name!r}{did_you_mean(exc.option_name, known)}"
        return CommandUsageError(what, reason=f"{path} has no such option", remedy=remedy)
    text = exc.format_message().rstrip(".")
    return CommandUsageError(text[:1].lower() + text[1:], reason=f"raised while reading: {path}", remedy=remedy)


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


def _silence_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush does not complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
