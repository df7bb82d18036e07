"""Problems of a checkpoint, collected in groups and raised together."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

import attrs

from deepinfer_core.errors import CheckpointError

MAX_SHOWN = 20
"""Entries of a group that the text shows; ``details`` has them all."""


class Group(Enum):
    """In the order of the report: files first, then names, then contents. The value is the heading."""

    INDEX = "index"
    MISSING_SHARD = "missing shards"
    BAD_SHARD = "unreadable shards"
    MISPLACED = "tensors that are not in the shard the index names"
    STAGE = "missing draft stages"
    MISSING = "missing tensors"
    UNEXPECTED = "unexpected tensors"
    FORBIDDEN = "tensors of another architecture"
    DTYPE = "tensors of the wrong dtype"
    SHAPE = "tensors of the wrong shape"
    SCALE = "missing or wrong scales"


_REMEDIES = {
    Group.INDEX: "write model.safetensors.index.json again",
    Group.MISSING_SHARD: "download the missing shards",
    Group.BAD_SHARD: "download the unreadable shards again",
    Group.MISPLACED: "write model.safetensors.index.json again for these shards",
    Group.STAGE: "switch drafting off, or use a checkpoint with draft weights",
    Group.MISSING: "check that config.json and the weights are of one checkpoint",
    Group.UNEXPECTED: "check that config.json and the weights are of one checkpoint",
    Group.FORBIDDEN: "use a DeepSeek-V4.1 checkpoint",
    Group.DTYPE: "convert these tensors, or correct quantization_config in config.json",
    Group.SHAPE: "check that config.json and the weights are of one checkpoint",
    Group.SCALE: "quantise these weights again and store each scale beside its weight",
}


@attrs.define
class Problems:
    """Everything found wrong in the checkpoint at ``directory``."""

    directory: Path
    found: dict[Group, list[str]] = attrs.field(factory=dict)

    def add(self, group: Group, text: str) -> None:
        self.found.setdefault(group, []).append(text)

    def raise_if_any(self) -> None:
        """Raise CheckpointError that lists every problem under its group; do nothing when there is none."""
        if not self.found:
            return
        groups = [group for group in Group if group in self.found]
        count = sum(len(entries) for entries in self.found.values())
        lines = [f"checkpoint {self.directory}: {count} problem{'s' if count > 1 else ''}"]
        for group in groups:
            entries = self.found[group]
            lines.append(f"    {group.value} ({len(entries)}):")
            lines += [f"      {entry}" for entry in entries[:MAX_SHOWN]]
            if len(entries) > MAX_SHOWN:
                lines.append(f"      ... and {len(entries) - MAX_SHOWN} more")
        raise CheckpointError(
            "\n".join(lines),
            reason="every tensor of the model must be there once, with its dtype, shape and scale",
            remedy="; ".join(dict.fromkeys(_REMEDIES[group] for group in groups)),
            details={"problems": {group.value: self.found[group] for group in groups}},
        )
