"""``deepinfer bench``: its three commands and their options. Nothing heavy is imported before one runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from deepinfer_core.commands import CommandState, common_options, json_line, output_file, setting_options
from deepinfer_core.errors import EXIT_OK, EXIT_SOME_FAILED
from deepinfer_core.parameters.values import refuse

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS = (
    "backend",
    "model",
    "load_format",
    "device",
    "seed",
    "numeric_mode",
    "cache_formats",
    "kv_memory",
    "max_model_len",
    "max_num_batched_tokens",
    "max_chunk",
    "block_size",
    "num_threads",
    "sampler",
    "draft_schedule",
    "verify",
    "deterministic",
    "overlap",
    "graphs",
    "validation",
    "model_plugin",
    "replay_mode",
    "keep_tokens",
)
PROFILED_STEPS = 8
MOST = {"batch": 65536, "prompt": 1 << 24, "drafts": 15, "steps": 1_000_000, "rounds": 10_000}


def _at_least(least: int, most: int) -> Callable[[click.Context, click.Parameter, int | None], int | None]:
    def check(context: click.Context, parameter: click.Parameter, value: int | None) -> int | None:
        if value is not None and not least <= value <= most:
            raise refuse(str(parameter.name), value, f"an integer from {least} to {most}")
        return value

    return check


def _numbers(least: int, most: int) -> Callable[[click.Context, click.Parameter, str | None], list[int]]:
    """Reads the numbers of an option; without it there are none."""

    def read(context: click.Context, parameter: click.Parameter, value: str | None) -> list[int]:
        if value is None:
            return []
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdecimal() and least <= int(part) <= most for part in parts):
            raise refuse(str(parameter.name), value, f"integers from {least} to {most}, separated by commas")
        return [int(part) for part in parts]

    return read


def _count(name: str, default: int | None, least: int, most: int, text: str) -> Callable[[F], F]:
    return click.option(
        name, type=int, default=default, metavar="N", callback=_at_least(least, most),
        help=text if default is None else f"{text} Default {default}.",
    )  # fmt: skip


def _common(function: F) -> F:
    """Options of all three."""
    for decorate in (
        common_options,
        setting_options(*SETTINGS),
        _count("--gc-every", 1000, 0, MOST["steps"], "Collect garbage after so many steps; 0: as Python does."),
        _count("--layers", None, 1, 4096, "Run so many layers of the model; needs --load-format dummy."),
        click.option("--text", metavar="FILE", help="Cut prompts from this text; random ids without it."),
    ):
        function = decorate(function)
    return function


def _outputs(function: F) -> F:
    for decorate in (
        click.option("--plots", metavar="DIR", help="Draw pictures into a folder; needs deepinfer-bench[plots]."),
        click.option("--csv", "table", metavar="FILE", callback=output_file, help="Write the figures as a table."),
        click.option("--out", metavar="FILE", callback=output_file, help="Write the whole report, as JSON."),
        click.option(
            "--profile/--no-profile", default=True, help="Run a few steps more under the profiler, at the end."
        ),
    ):
        function = decorate(function)
    return function


@click.group("bench")
@common_options
def bench() -> None:
    """Measure prefill and decode steps through the whole engine, on this machine.

    Prompts are of fixed length and arrive at once; answers are greedy and never end by themselves.
    """


@bench.command("prefill", short_help="Measure how fast prompts are computed.")
@_count("--batch", 1, 1, MOST["batch"], "Prompts of a round.")
@_count("--prompt", 512, 1, MOST["prompt"], "Tokens of each prompt.")
@_count("--rounds", 5, 1, MOST["rounds"], "Rounds that count.")
@_count("--warm-up-rounds", 4, 0, MOST["rounds"], "Rounds before them, at most.")
@_outputs
@_common
@click.pass_context
def prefill(context: click.Context, /, **options: Any) -> int:
    """Measure how fast prompts are computed: steps, prompt tokens a second, share of the roofline.

    Exit status: 0 ok, 2 usage, 3 backend, 4 model, 74 output not written, 130 interrupted.
    """
    return _one(context, "prefill", steps=0, draft_tokens=0, **options)


@bench.command("decode", short_help="Measure decode steps, and the prefill before them.")
@_count("--batch", 8, 1, MOST["batch"], "Requests that decode together.")
@_count("--prompt", 256, 1, MOST["prompt"], "Tokens of each prompt.")
@_count("--draft-tokens", None, 0, MOST["drafts"], "Draft tokens of a step; that of the settings, else 0.")
@_count("--steps", 128, 1, MOST["steps"], "Decode steps that count.")
@_count("--warm-up-rounds", 2, 0, MOST["rounds"], "Rounds of prompts before, at most.")
@_outputs
@_common
@click.pass_context
def decode(context: click.Context, /, **options: Any) -> int:
    """Measure decode steps of a steady batch, and the prefill that came before them, as segments apart.

    Exit status: 0 ok, 2 usage, 3 backend, 4 model, 74 output not written, 130 interrupted.
    """
    return _one(context, "decode", rounds=1, **options)


@bench.command("sweep", short_help="Measure a grid of points into a folder.")
@click.option(
    "--batches",
    default="1,8",
    callback=_numbers(1, MOST["batch"]),
    metavar="N,...",
    help="Requests that decode together. Default 1,8.",
)
@click.option(
    "--prompts",
    default="128,512",
    callback=_numbers(1, MOST["prompt"]),
    metavar="N,...",
    help="Tokens of each prompt. Default 128,512.",
)
@click.option(
    "--draft-tokens",
    callback=_numbers(0, MOST["drafts"]),
    metavar="N,...",
    help="Draft tokens of a step; that of the settings, else 0.",
)
@_count("--steps", 128, 1, MOST["steps"], "Decode steps that count, of each point.")
@_count("--warm-up-rounds", 2, 0, MOST["rounds"], "Rounds of prompts before each point, at most.")
@click.option("--out", metavar="DIR", required=True, help="Folder of the points; finished ones are not run again.")
@click.option("--plots", is_flag=True, help="Draw pictures into the folder; needs deepinfer-bench[plots].")
@_common
@click.pass_context
def sweep(context: click.Context, /, **options: Any) -> int:
    """Measure every combination of batches, prompts and draft tokens. Run again, it goes on where it was cut short.

    Each point is a file in DIR, written when it is finished; Ctrl-C loses the point that runs. No profiler runs, since
    the points behind it would be slower. Exit status: 0 ok, 1 some points failed, 2 usage, 3 backend, 4 model, 74
    output not written, 130 interrupted.
    """
    from deepinfer_bench.session import run_grid

    state = context.ensure_object(CommandState)
    data, failed = run_grid(state.resolve(), options, tell)
    _print(state, data)
    return EXIT_SOME_FAILED if failed else EXIT_OK


def _one(context: click.Context, command: str, **options: Any) -> int:
    from deepinfer_bench.session import check_outputs, run_point, write_outputs

    state = context.ensure_object(CommandState)
    paths = {name: None if options[name] is None else Path(options[name]) for name in ("out", "table", "plots")}
    check_outputs(**paths)
    data = run_point(command, state.resolve(), options, PROFILED_STEPS if options["profile"] else 0, tell)
    _print(state, data)  # first: a full disk does not cost what was measured
    write_outputs(data, **paths)
    return EXIT_OK


def tell(line: str) -> None:
    """Progress, for a person."""
    sys.stderr.write(f"bench: {line}\n")


def _print(state: CommandState, data: dict[str, Any]) -> None:
    from deepinfer_bench.report import as_text

    if state.json:
        sys.stdout.buffer.write(json_line(data))
    else:
        sys.stdout.write(as_text(data))
    sys.stdout.flush()
