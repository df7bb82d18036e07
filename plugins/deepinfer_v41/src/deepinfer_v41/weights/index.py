"""Which file holds which tensor: ``model.safetensors.index.json``, or one ``model.safetensors``.

The index decides which files are read: a stray weight file beside them is ignored. Headers are read here, tensor data
only when a tensor is asked for (the files are memory-mapped).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any, Final

import attrs
from safetensors import SafetensorError, safe_open
from torch import Tensor

from deepinfer_core.errors import CheckpointError, ModelNotFound
from deepinfer_v41.weights.problems import Group, Problems

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
_PREFIX: Final = "model."
_HEADER_BYTES: Final = 8


@attrs.frozen
class StoredTensor:
    """One tensor of a shard, from its header. ``stored_name`` still has the optional ``model.`` prefix."""

    stored_name: str
    shard: str
    dtype: str
    """As the safetensors format names it: BF16, F8_E4M3, ..."""
    shape: tuple[int, ...]


@attrs.frozen
class ShardSet:
    """The readable shards of a checkpoint and the tensors found where they should be."""

    tensors: Mapping[str, StoredTensor]
    """Name without prefix -> where it is."""
    unreachable: frozenset[str]
    """Names the index has, in a shard that is missing, unreadable, or lacks them (already reported)."""
    handles: Mapping[str, Any]
    """Shard file name -> open ``safe_open`` handle."""

    def read(self, name: str) -> Tensor:
        """The tensor as stored, mapped from its file."""
        stored = self.tensors[name]
        tensor: Tensor = self.handles[stored.shard].get_tensor(stored.stored_name)
        return tensor


def open_shards(directory: Path, problems: Problems) -> ShardSet:
    """Find and open all shards of the checkpoint in ``directory``; what is wrong goes to ``problems``.

    Raises ModelNotFound when there is no such directory, CheckpointError when there is no list of weights or no shard
    can be read.
    """
    if not directory.is_dir():
        raise ModelNotFound(f"no model directory {directory}", remedy="give the directory that holds config.json")
    if (directory / INDEX_NAME).is_file():
        placement = _read_index(directory / INDEX_NAME)
        names = sorted(set(placement.values()))
    elif (directory / SINGLE_NAME).is_file():
        placement, names = {}, [SINGLE_NAME]
    else:
        raise _no_weights(directory)
    handles = {}
    for name in names:
        handle = _open_shard(directory, name, placement, problems)
        if handle is not None:
            handles[name] = handle
    if not handles:
        # With nothing to read, a list of all tensors as missing would hide the cause.
        problems.raise_if_any()
    if not placement:
        placement = dict.fromkeys(handles[SINGLE_NAME].keys(), SINGLE_NAME)
    return _place(placement, handles, problems)


def without_prefix(name: str) -> str:
    """The name of the layout: some exports write ``model.layers.0`` for ``layers.0``."""
    return name.removeprefix(_PREFIX)


def _read_index(path: Path) -> dict[str, str]:
    try:
        document = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}", remedy="download model.safetensors.index.json again"
        ) from error
    placement = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(placement, dict) or not placement:
        raise CheckpointError(
            f"{path} has no weight_map",
            reason="the index must be an object with weight_map: tensor name -> shard file name",
            remedy="download model.safetensors.index.json again",
        )
    for name, shard in placement.items():
        # A shard lies beside its index: a path would let a checkpoint read any file of the machine.
        if not isinstance(shard, str) or not shard or PurePath(shard).name != shard or "\\" in shard:
            raise CheckpointError(
                f"{path} names shard {shard!r} for {name}",
                reason="a shard must be a plain file name in the directory of the index",
                remedy="write model.safetensors.index.json again",
            )
    return placement


def _no_weights(directory: Path) -> CheckpointError:
    others = sorted(
        entry.name for entry in directory.iterdir() if entry.suffix in (".safetensors", ".bin", ".pth", ".gguf")
    )
    found = f"found only {', '.join(others[:5])}, which no index names" if others else "no weight file is there at all"
    return CheckpointError(
        f"{directory} has neither {INDEX_NAME} nor {SINGLE_NAME}",
        reason=found,
        remedy="download the whole checkpoint in the safetensors format, with its index",
    )


def _open_shard(directory: Path, name: str, placement: Mapping[str, str], problems: Problems) -> Any:
    path = directory / name
    if not path.is_file():
        wanted = [tensor for tensor, shard in placement.items() if shard == name]
        more = f" and {len(wanted) - 3} more" if len(wanted) > 3 else ""
        problems.add(Group.MISSING_SHARD, f"{name}: the index names it for {', '.join(wanted[:3])}{more}")
        return None
    try:
        return safe_open(str(path), framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        problems.add(Group.BAD_SHARD, f"{name}: {_damage(path) or error}")
        return None


def _damage(path: Path) -> str | None:
    """What is wrong with a shard that the library refuses, with sizes; None when nothing simple explains it."""
    size = path.stat().st_size
    with path.open("rb") as file:
        head = file.read(_HEADER_BYTES)
        length = int.from_bytes(head, "little")
        if len(head) < _HEADER_BYTES or _HEADER_BYTES + length > size:
            return f"truncated: {size} bytes, too short for its header"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            needed = _HEADER_BYTES + length + max(ends, default=0)
        except (ValueError, AttributeError, LookupError, TypeError, RecursionError):
            return "its header is not that of a safetensors file"
    return f"truncated: {size} bytes, its header needs {needed}" if needed > size else None


def _place(placement: Mapping[str, str], handles: Mapping[str, Any], problems: Problems) -> ShardSet:
    contents = {shard: frozenset(handle.keys()) for shard, handle in handles.items()}
    tensors: dict[str, StoredTensor] = {}
    unreachable = set()
    for stored_name, shard in sorted(placement.items()):
        name = without_prefix(stored_name)
        if shard not in handles:
            unreachable.add(name)
        elif stored_name not in contents[shard]:
            unreachable.add(name)
            elsewhere = [other for other, names in contents.items() if stored_name in names]
            where = f"it is in {', '.join(elsewhere)}" if elsewhere else "it is in no shard"
            problems.add(Group.MISPLACED, f"{stored_name}: the index names {shard}, which lacks it; {where}")
        elif name in tensors:
            other = tensors[name]
            text = f"{stored_name} ({shard}) and {other.stored_name} ({other.shard}) are the same tensor"
            problems.add(Group.UNEXPECTED, text)
        else:
            part = handles[shard].get_slice(stored_name)
            tensors[name] = StoredTensor(stored_name, shard, part.get_dtype(), tuple(part.get_shape()))
    for shard, names in sorted(contents.items()):
        for stored_name in sorted(names - placement.keys()):
            problems.add(Group.UNEXPECTED, f"{stored_name} ({shard}), which the index does not name")
    return ShardSet(tensors, frozenset(unreachable), handles)
