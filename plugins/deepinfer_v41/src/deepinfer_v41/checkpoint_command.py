"""``deepinfer checkpoint DIR``: what a V4.1 checkpoint holds, and what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import click

from deepinfer_core.assembly.model_card import read_model_card
from deepinfer_core.commands import CommandState, common_options
from deepinfer_core.errors import EXIT_MODEL, EXIT_OK, DeepInferError, ModelError
from deepinfer_core.text.tokenizer import Tokenizer
from deepinfer_core.types import ModelCard
from deepinfer_v41.config import ARCHITECTURE, V41Config
from deepinfer_v41.weights.problems import MAX_SHOWN

if TYPE_CHECKING:
    from deepinfer_v41.weights.inventory import Inventory, Part


@click.command("checkpoint")
@click.argument("folder", metavar="DIR")
@click.option("--headers-only", is_flag=True, help="Leave out the values of scales, 4 % of the bytes.")
@common_options
@click.pass_obj
def checkpoint(state: CommandState, folder: str, headers_only: bool) -> int:
    """Say what the V4.1 checkpoint in DIR holds: parts, formats, sizes, experts, draft head and tokenizer.

    Every problem of the files is listed, those that would keep the model from loading. No weights are read. Exit
    status: 0 nothing is wrong, 4 problems, or no V4.1 checkpoint.
    """
    from deepinfer_v41.weights.inventory import take_inventory  # torch: help and reference do without

    card = read_model_card(folder, otherwise="")
    if card.architecture != ARCHITECTURE:
        raise ModelError(
            f"{card.path} holds a {card.architecture}",
            reason=f"this command reads checkpoints of {ARCHITECTURE}",
            remedy="give a V4.1 checkpoint; deepinfer doctor --model DIR looks at any model",
        )
    config = V41Config.from_dict(card.config)
    inventory = take_inventory(card.path, config, headers_only=headers_only)
    data = as_data(card, config, inventory)
    if state.json:
        click.echo(json.dumps(data))
    else:
        click.echo("\n".join(_text(data)))
    return EXIT_MODEL if data["problems"] else EXIT_OK


def as_data(card: ModelCard, config: V41Config, inventory: Inventory) -> dict[str, Any]:
    """The inventory, JSON-serialisable."""
    problems = dict(inventory.problems)
    vocab_size = None
    try:
        vocab_size = Tokenizer.load(card.path, card.config).vocab_size
    except DeepInferError as exc:
        problems["tokenizer"] = [exc.what]
    kinds = [plan.kind.value for plan in config.layers if not plan.is_draft]
    stages = config.num_nextn_predict_layers
    return {
        "path": str(card.path),
        "architecture": card.architecture,
        "layers": {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)},
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "experts": {"routed": config.n_routed_experts, "per_token": config.num_experts_per_tok, "shared": 1},
        "draft": {"stages": stages, "absent": list(inventory.absent_stages), "block": config.dspark_block_size},
        "tokenizer": vocab_size,
        "files": inventory.files,
        "tensors": inventory.tensors,
        "values": inventory.values,
        "bytes": inventory.nbytes,
        "parts": [_part(part) for part in inventory.parts],
        "problems": problems,
    }


def _part(part: Part) -> dict[str, Any]:
    return {**attrs.asdict(part, recurse=False), "formats": dict(part.formats.most_common())}


def _text(data: Mapping[str, Any]) -> Iterator[str]:
    layers = data["layers"]
    listed = ", ".join(f"{count} {kind}" for kind, count in layers.items())
    yield f"{data['architecture']} in {data['path']}"
    yield f"  layers      {sum(layers.values())} ({listed}), width {data['hidden_size']:,}"
    yield f"  vocabulary  {data['vocab_size']:,} ids; {data['max_position_embeddings']:,} positions"
    experts = data["experts"]
    yield f"  experts     {experts['routed']} a layer, {experts['per_token']} for a token, {experts['shared']} shared"
    yield f"  draft head  {_draft(data['draft'])}"
    yield f"  tokenizer   {_tokens(data['tokenizer'])}"
    files = data["files"]
    yield (
        f"  weights     {data['tensors']:,} tensors in {files} file{'' if files == 1 else 's'}: "
        f"{data['values']:,} values, {_size(data['bytes'])}"
    )
    yield ""
    rows = [("PART", "TENSORS", "VALUES", "SIZE", "FORMATS")]
    for part in data["parts"]:
        formats = ", ".join(f"{name} {_size(size)}" for name, size in part["formats"].items())
        rows.append((part["name"], f"{part['tensors']:,}", f"{part['values']:,}", _size(part["nbytes"]), formats))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for name, *numbers, formats in rows:
        cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join([name.ljust(widths[0]), *cells, formats])
    yield ""
    yield from _problems(data["problems"])


def _draft(draft: Mapping[str, Any]) -> str:
    if not draft["stages"]:
        return "none"
    stages = f"{draft['stages']} stage{'' if draft['stages'] == 1 else 's'}, {draft['block']} drafts"
    absent = ", ".join(f"mtp.{stage}" for stage in draft["absent"])
    return f"{stages}; without weights: {absent}, so drafting is off" if absent else stages


def _tokens(count: int | None) -> str:
    return "cannot be used" if count is None else f"{count:,} tokens"


def _problems(problems: Mapping[str, list[str]]) -> Iterator[str]:
    count = sum(map(len, problems.values()))
    for group, entries in problems.items():
        yield f"{group} ({len(entries)}):"
        yield from (f"  {entry}" for entry in entries[:MAX_SHOWN])
        if len(entries) > MAX_SHOWN:
            yield f"  ... and {len(entries) - MAX_SHOWN} more"
    yield f"{count} problem{'' if count == 1 else 's'}."


def _size(nbytes: int) -> str:
    """``512 B``, ``3.4 MiB``."""
    size, units = float(nbytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{nbytes} B" if units[0] == "B" else f"{size:,.1f} {units[0]}"
