"""Checkpoints made worse: copies in which one safetensors file is another one; the rest are links."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from attrs import define


@define(eq=False)
class Tensors:
    """A safetensors file: the entries of its header, and the bytes that they name."""

    entries: dict[str, dict[str, Any]]
    metadata: dict[str, str]
    data: bytes

    @classmethod
    def read(cls, path: Path) -> Self:
        raw = path.read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        header: dict[str, Any] = json.loads(raw[8 : 8 + length])
        metadata = header.pop("__metadata__", {})
        return cls(header, metadata, raw[8 + length :])

    def drop(self, name: str) -> None:
        del self.entries[name]

    def flatten(self, name: str) -> None:
        """The same bytes with one dimension."""
        entry = self.entries[name]
        self.entries[name] = {**entry, "shape": [math.prod(entry["shape"])]}

    def write(self, path: Path) -> None:
        """A well-formed file: what was dropped leaves no hole."""
        header: dict[str, Any] = {"__metadata__": self.metadata} if self.metadata else {}
        parts: list[bytes] = []
        offset = 0
        for name, entry in sorted(self.entries.items(), key=lambda item: item[1]["data_offsets"]):
            begin, end = entry["data_offsets"]
            header[name] = {**entry, "data_offsets": [offset, offset + end - begin]}
            parts.append(self.data[begin:end])
            offset += end - begin
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def shard_of(checkpoint: Path) -> Path | None:
    """The smallest safetensors file of a checkpoint."""
    return min(checkpoint.glob("*.safetensors"), key=lambda path: path.stat().st_size, default=None)


def broken_copy(shard: Path, folder: Path, edit: Callable[[Tensors], object]) -> Path:
    """A copy of the checkpoint in ``folder`` with ``edit`` done to one file."""
    _link(shard, folder)
    tensors = Tensors.read(shard)
    edit(tensors)
    tensors.write(folder / shard.name)
    return folder


def without(names: Iterable[str]) -> Callable[[Tensors], None]:
    """An edit that takes tensors away."""

    def edit(tensors: Tensors) -> None:
        for name in names:
            tensors.drop(name)

    return edit


def truncated_copy(shard: Path, folder: Path) -> Path:
    """A copy in which the file ends after two thirds of its bytes, as after a broken download."""
    _link(shard, folder)
    raw = shard.read_bytes()
    (folder / shard.name).write_bytes(raw[: len(raw) * 2 // 3])
    return folder


def without_weights(shard: Path, folder: Path) -> Path:
    """A copy that has no weights, and no index of them."""
    _link(shard, folder)
    for path in folder.iterdir():
        if ".safetensors" in path.name:
            path.unlink()
    return folder


def _link(shard: Path, folder: Path) -> None:
    for path in shard.parent.iterdir():
        if path.is_file() and path != shard:
            (folder / path.name).symlink_to(path.resolve())
