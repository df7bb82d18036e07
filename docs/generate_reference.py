"""Writes the reference pages that follow from the code: error codes, settings, commands, structured output.

``python docs/generate_reference.py`` writes them; with ``--check`` it writes nothing and exits 1 if a page is out of
date. The contracts' pages have their own generator, ``contracts/generate.py``.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from structured_output_page import structured_output_page

from deepinfer_core import errors
from deepinfer_core.cli.root import option_arity, root
from deepinfer_core.config import EngineConfig, settings_by_key

FOLDER = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by docs/generate_reference.py from the code. Change the code, then run it again. -->\n"
HELP_WIDTH = 100

EXIT_MEANINGS = {
    "EXIT_OK": "everything asked for was done",
    "EXIT_SOME_FAILED": "some requests failed, each with its reason; the others have their results. "
    "`deepinfer doctor`: a problem in what was named or what every run needs",
    "EXIT_USAGE": "a parameter, setting, prompt or input file is wrong, or asks for what this release does not have",
    "EXIT_BACKEND": "no backend can be used, or a plugin failed",
    "EXIT_MODEL": "the model, its configuration, its checkpoint or its tokenizer is wrong",
    "EXIT_MISMATCH": "a result differs from its baseline",
    "EXIT_INTERNAL": "a fault of DeepInfer or of a plugin",
    "EXIT_OUTPUT": "results could not be written (no space left, or the file or stream refuses them)",
    "EXIT_INTERRUPTED": "interrupted (Ctrl-C)",
    "EXIT_READER_LEFT": "the reader of standard output, or of the pipe given to `--out`, left before the end",
}


def error_classes(base: type[errors.DeepInferError]) -> Iterator[type[errors.DeepInferError]]:
    """``base`` and its subclasses in the order of the module, each before its own subclasses."""
    yield base
    for derived in base.__subclasses__():
        if derived.__module__ == errors.__name__:
            yield from error_classes(derived)


def errors_page() -> str:
    lines = [
        "# Errors",
        "",
        NOTICE,
        "Every failure that a person can meet has a class, a stable code and an exit status. The text names what",
        "failed with its values, then the reason and the remedy:",
        "",
        "```text",
        "deepinfer: E_BACKEND_MISSING: no backend named 'ascent'; did you mean 'ascend'?",
        "  reason: installed backends: ascend, cpu",
        "  remedy: deepinfer --backend ascend ..., or pip install the plugin that provides 'ascent'",
        "```",
        "",
        "With `--json` the same error is one JSON object with `code`, `message`, `reason`, `remedy` and `details`.",
        "With `--debug` a traceback comes first. In Python the classes are in `deepinfer_core.errors`; all of them",
        "are `DeepInferError`.",
        "",
        "## Codes",
        "",
        "| code | exit status | class | a kind of | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for cls in error_classes(errors.DeepInferError):
        bases = ", ".join(f"`{base.__name__}`" for base in cls.__bases__)
        lines.append(f"| `{cls.code}` | {cls.exit_status} | `{cls.__name__}` | {bases} | {_meaning(cls)} |")
    lines += ["", "## Exit statuses", "", "| status | meaning |", "| --- | --- |"]
    lines += [f"| {value} | {EXIT_MEANINGS[name]} |" for name, value in _exit_statuses()]
    return "\n".join(lines) + "\n"


def settings_page() -> str:
    defaults = EngineConfig()
    options = option_arity(root, "generate")
    flagless = [key for key in settings_by_key() if "." not in key and f"--{key.replace('_', '-')}" not in options]
    lines = [
        "# Settings",
        "",
        NOTICE,
        "A setting is given by a flag (or an argument of `LLM`), in a TOML file (`--config FILE`), or in the",
        "environment; the first of these that has it wins, and the default comes last. An unknown key in the file is",
        "an error; an unknown `DEEPINFER_` variable gives a warning with the nearest name. Keys with a dot stand in",
        "the table `[plugins]` of the file. "
        + ", ".join(f"`{key}`" for key in flagless)
        + " and `plugins.allow` have no flag.",
        "",
        "| key | default | values | environment | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for key, declared in settings_by_key().items():
        cells = (f"`{key}`", _value(defaults.get(key)), declared.range_text(), f"`{declared.env_name(key)}`")
        lines.append(f"| {' | '.join(cells)} | {_cell(declared.help)} |")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    lines = ["# Commands", "", NOTICE, "From a clone, the command is `.venv/bin/deepinfer`."]
    for title, text in _helps(root, None, "deepinfer"):
        lines += ["", f"## {title}", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


def _helps(command: click.Command, parent: click.Context | None, name: str) -> Iterator[tuple[str, str]]:
    context = click.Context(command, parent, name, terminal_width=HELP_WIDTH, max_content_width=HELP_WIDTH, color=False)
    yield context.command_path, command.get_help(context)
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found = command.get_command(context, inner)
            if found is not None and not found.hidden:
                yield from _helps(found, context, inner)


def _exit_statuses() -> list[tuple[str, int]]:
    names = [name for name in vars(errors) if name.startswith("EXIT_")]
    return sorted(((name, getattr(errors, name)) for name in names), key=lambda item: item[1])


def _meaning(cls: type[errors.DeepInferError]) -> str:
    """The first paragraph of the class's own docstring."""
    if not cls.__doc__:
        raise SystemExit(f"{cls.__module__}.{cls.__name__} has no docstring: say what the error means")
    return _cell(" ".join(inspect.cleandoc(cls.__doc__).split("\n\n")[0].split()))


def _value(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple | dict):
        return f"`{', '.join(map(str, value))}`" if value else "none"
    return f"`{value}`"


def _cell(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")


PAGES = {
    "errors.md": errors_page,
    "settings.md": settings_page,
    "commands.md": commands_page,
    "structured-output.md": lambda: structured_output_page(NOTICE),
}


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate_reference.py [--check]\n")
        return 2
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not arguments:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    for name in stale:
        sys.stdout.write(f"docs/reference/{name}: {'out of date' if arguments else 'written'}\n")
    if stale and arguments:
        sys.stdout.write("run: python docs/generate_reference.py\n")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
