"""``deepinfer verify-replay``: bounded replay beside its rule."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import click

from deepinfer_core.bounded_file import read_bounded_text
from deepinfer_core.commands import CommandState, common_options, setting_options
from deepinfer_core.errors import EXIT_MISMATCH, EXIT_OK, CommandUsageError, InvalidInputFile

DRAFTS = 4
NEW_TOKENS = 16
OPTIONS = (
    *("backend", "emulate", "model", "model_plugin", "device", "kv_memory", "num_threads"),
    *("numeric_mode", "cache_formats", "draft_tokens", "keep_tokens", "block_size", "max_model_len"),
)


@click.command("verify-replay")
@click.option("--level", type=click.IntRange(1, 2), default=1, help="1: no weights; 2: on a checkpoint. Default 1.")
@click.option("--text", metavar="FILE", help="Level 2: text to force; one that comes with the command unless given.")
@click.option(
    "--new-tokens", type=click.IntRange(2), metavar="N", help=f"Level 2: forced tokens; default {NEW_TOKENS}."
)
@setting_options(*OPTIONS)
@common_options
@click.pass_obj
def verify_replay(state: CommandState, level: int, text: str | None, new_tokens: int | None) -> int:
    """Compare bounded replay of the decoder half with its rule: modes off, mask and compact, chunks, prefix hits.

    Level 1 takes made-up prompts of many lengths through scheduler and packer, and turns their arrays back into what
    each row sees and stores: windows, compressed keys, slots, rows that are kept. That is compared with the rule.

    Level 2 forces a text through a checkpoint, with drafts (--draft-tokens, 4 unless given), and compares
    log-probabilities and confidences bit by bit: mask with compact, chunks with whole prompts, also behind a prefix
    hit, an exact hit with a cold run, and all modes for prompts that are kept whole.

    Exit status: 0 no difference, 5 a difference; 2 usage, 3 backend, 4 model, 130 interrupted.
    """
    if level == 1:
        given = {"text": text, "new_tokens": new_tokens, **{key: state.flags.get(key) for key in OPTIONS}}
        for name in (name for name, value in given.items() if value is not None):
            option = f"--{name.replace('_', '-')}"
            raise CommandUsageError(f"{option} is for level 2", remedy="give --level 2 too, or leave it out")
        return _level1(state)
    return _level2(state, text, NEW_TOKENS if new_tokens is None else new_tokens)


def _level1(state: CommandState) -> int:
    from deepinfer_core.assembly.native_core import load_native

    load_native()  # says what to do where it was not built
    from deepinfer_verify.replay.level1 import run_level1
    from deepinfer_verify.replay.report import level1_lines, level1_record

    findings = run_level1()
    click.echo(json.dumps(level1_record(findings)) if state.json else "\n".join(level1_lines(findings)))
    return EXIT_MISMATCH if findings.count else EXIT_OK


def _level2(state: CommandState, text: str | None, new_tokens: int) -> int:
    from deepinfer_core.assembly.native_core import load_native

    load_native()
    from deepinfer_verify.engine_settings import say_left_out, settings_for
    from deepinfer_verify.replay.level2 import SETTINGS, run_level2
    from deepinfer_verify.replay.report import level2_lines, level2_record

    state.flags.setdefault("draft_tokens", DRAFTS)
    config = state.resolve()
    say_left_out(settings_for(config, {}, SETTINGS)[1], set())
    result = run_level2(config, _text(text), new_tokens)
    click.echo(json.dumps(level2_record(result)) if state.json else "\n".join(level2_lines(result)))
    return EXIT_MISMATCH if result.findings.count else EXIT_OK


def _text(given: str | None) -> str:
    if given is None:
        return files("deepinfer_verify").joinpath("workloads", "shelf.txt").read_text("utf-8")
    path = Path(given).expanduser()
    try:
        return read_bounded_text(path)
    except (OSError, UnicodeDecodeError) as err:
        reason = (err.strerror if isinstance(err, OSError) else None) or str(err)
        raise InvalidInputFile(
            f"cannot read the text {path}", reason=reason, remedy="check --text", details={"path": str(path)}
        ) from err
