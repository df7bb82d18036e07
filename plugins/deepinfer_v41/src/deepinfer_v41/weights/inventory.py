"""What a checkpoint holds, part by part, and everything that is wrong with it. No weight is read.

Headers say what is there; the table of tensors (``spec/model.md`` 3) says what each is. A damaged checkpoint has an
inventory all the same: what is there is counted, what is wrong is listed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import attrs

from deepinfer_v41.config import V41Config
from deepinfer_v41.layer_plan import LayerKind
from deepinfer_v41.weights.checks import check_names, check_storage, find_absent_stages
from deepinfer_v41.weights.index import ShardSet, StoredTensor, open_shards
from deepinfer_v41.weights.problems import Group, Problems
from deepinfer_v41.weights.table import ITEM_BYTES, Role, TensorSpec, tensor_table

_FORMATS = {
    Role.BLOCK_FP8: "FP8 (32x32)",
    Role.ROWS_FP8: "FP8 (1x32)",
    Role.MXFP4: "MXFP4",
    Role.BLOCK_SCALE: "scales",
    Role.GROUP_SCALE: "scales",
}
_ENDS = "embedding and head"
_FFN_PARTS = {"experts": "routed experts", "shared_experts": "shared experts", "gate": "router"}


@attrs.define
class Part:
    """A part of the model: its tensors, the values that they stand for, and their bytes in the files."""

    name: str
    tensors: int = 0
    values: int = 0
    nbytes: int = 0
    formats: Counter[str] = attrs.field(factory=Counter)
    """Format -> bytes in it."""


@attrs.frozen
class Inventory:
    """All parts in the order of the model, then what belongs to none."""

    parts: tuple[Part, ...]
    files: int
    absent_stages: tuple[int, ...]
    """Draft stages that the configuration has and the files have not."""
    problems: Mapping[str, list[str]]
    """Heading -> problems."""

    @property
    def tensors(self) -> int:
        return sum(part.tensors for part in self.parts)

    @property
    def values(self) -> int:
        return sum(part.values for part in self.parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)


def take_inventory(path: Path, config: V41Config, *, headers_only: bool = False) -> Inventory:
    """The inventory of the checkpoint in directory ``path``.

    :param headers_only: Do not read the values of scales, 4 % of the bytes, which have problems of their own.

    Raises CheckpointError where no list of weights can be read, ModelNotFound where there is no directory.
    """
    problems = Problems(path)
    shards = open_shards(path, problems)
    table = tensor_table(config)
    absent = find_absent_stages(table, shards)
    check_names(table, shards, absent, problems)
    check_storage(table, shards, problems, headers_only=headers_only)
    return Inventory(
        parts=tuple(_parts(config, table, shards)),
        files=len(shards.handles),
        absent_stages=tuple(absent),
        problems={group.value: list(problems.found[group]) for group in Group if group in problems.found},
    )


def _parts(config: V41Config, table: Mapping[str, TensorSpec], shards: ShardSet) -> list[Part]:
    kinds = {plan.prefix: plan.kind for plan in config.layers}
    counts = Counter(plan.kind for plan in config.layers if not plan.is_draft)
    names = [_ENDS, *(_attention(kind, counts[kind]) for kind in LayerKind if counts[kind])]
    names += [*_FFN_PARTS.values(), "norms and streams", "engram", "draft head", "vision", "unknown"]
    parts = {name: Part(name) for name in names}
    for name, stored in shards.tensors.items():
        part = parts[_part_of(name, kinds, counts) if name in table else "unknown"]
        nbytes = math.prod(stored.shape) * ITEM_BYTES.get(stored.dtype, 0)
        spec = table.get(name)
        part.tensors += 1
        part.nbytes += nbytes
        part.values += math.prod(spec.logical_shape) if spec is not None and not spec.role.is_scale else 0
        part.formats[_format(stored, spec)] += nbytes
    return [part for part in parts.values() if part.tensors]


def _part_of(name: str, kinds: Mapping[str, LayerKind], counts: Mapping[LayerKind, int]) -> str:
    head, *rest = name.split(".")
    if head == "mtp":
        return "draft head"
    if head in ("vision", "aligner") or head.startswith("image_"):
        return "vision"
    if head != "layers":
        return _ENDS
    if rest[1] == "attn":
        kind = kinds[f"layers.{rest[0]}"]
        return _attention(kind, counts[kind])
    if rest[1] == "ffn":
        return _FFN_PARTS[rest[2]]
    return "engram" if rest[1] == "engram" else "norms and streams"


def _attention(kind: LayerKind, count: int) -> str:
    return f"attention of {count} {kind.value}"


def _format(stored: StoredTensor, spec: TensorSpec | None) -> str:
    return _FORMATS.get(spec.role, stored.dtype) if spec is not None else stored.dtype
