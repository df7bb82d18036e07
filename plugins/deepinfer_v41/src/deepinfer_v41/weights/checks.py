"""What must hold of a checkpoint's tensors: names, dtypes, shapes, scales. Each finding goes to ``Problems``."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np
import torch

from deepinfer_core.errors import CheckpointError
from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.formats import E8M0_NAN, find_not_power_of_two
from deepinfer_v41.weights.index import ShardSet, StoredTensor
from deepinfer_v41.weights.problems import Group, Problems
from deepinfer_v41.weights.table import Role, TensorSpec

_PIECE: Final = 1 << 24
_FORBIDDEN: Final = {
    re.compile(r"\bhc_\w+_norm\.weight$"): "V4.1 folds this norm into hc_*_fn",
    re.compile(r"\bhc_head_\w+$"): "V4.1 has no learned collapse of the streams",
    re.compile(r"\bcompressor\.ape$"): "V4.1's compressor has no positional bias",
    re.compile(r"\bgate\.tid2eid$"): "V4.1 has no hash-routed experts",
}


def find_absent_stages(table: Mapping[str, TensorSpec], shards: ShardSet) -> list[int]:
    """Stages none of whose tensors is named."""
    known = shards.tensors.keys() | shards.unreachable
    stages = {spec.stage for spec in table.values() if spec.stage is not None}
    present = {spec.stage for name, spec in table.items() if name in known}
    return sorted(stages - present)


def require_draft(
    config: V41Config, absent: Collection[int], table: Mapping[str, TensorSpec], problems: Problems
) -> None:
    """Report absent stages as problems. Raises CheckpointError when the model has no draft stages at all."""
    if config.num_nextn_predict_layers == 0:
        raise CheckpointError(
            f"checkpoint {problems.directory} has no draft stages",
            reason="num_nextn_predict_layers is 0 in its config.json",
            remedy="switch drafting off, or use a checkpoint with draft weights",
        )
    for stage in absent:
        count = sum(spec.stage == stage for spec in table.values())
        problems.add(Group.STAGE, f"mtp.{stage}: none of its {count} tensors is there")


def check_names(
    table: Mapping[str, TensorSpec], shards: ShardSet, absent_stages: Collection[int], problems: Problems
) -> None:
    """Every tensor of the table is there, and no other one; tensors of absent draft stages are not expected."""
    files = sorted(shards.handles)
    where = files[0] if len(files) == 1 else f"one of {len(files)} shards"
    for name, spec in table.items():
        if name in shards.tensors or name in shards.unreachable or spec.stage in absent_stages:
            continue
        expected = f"{spec.dtype} {list(spec.shape)}"
        weight = name.removesuffix(".scale") + ".weight"
        if spec.role.is_scale and weight in shards.tensors:
            text = f"{name}: missing; {weight} ({shards.tensors[weight].shard}) needs {expected}{_grid(spec)}"
            problems.add(Group.SCALE, text)
        else:
            problems.add(Group.MISSING, f"{name}: expected {expected} in {where}")
    for name, stored in shards.tensors.items():
        if name in table:
            continue
        why = next((reason for pattern, reason in _FORBIDDEN.items() if pattern.search(name)), None)
        if why is not None:
            problems.add(Group.FORBIDDEN, f"{name} ({stored.shard}): {why}")
        else:
            problems.add(Group.UNEXPECTED, f"{name} ({stored.shard}): {stored.dtype} {list(stored.shape)}")


def check_storage(
    table: Mapping[str, TensorSpec], shards: ShardSet, problems: Problems, *, headers_only: bool = False
) -> None:
    """Every tensor has its dtype and shape; the values of scales are read and checked, 4 % of a checkpoint's bytes.

    ``headers_only`` leaves the values out.
    """
    for name, spec in table.items():
        if name in shards.tensors:
            _check_storage(name, spec, shards, problems, headers_only)


def _check_storage(name: str, spec: TensorSpec, shards: ShardSet, problems: Problems, headers_only: bool) -> None:
    stored = shards.tensors[name]
    group_of_shape = Group.SCALE if spec.role.is_scale else Group.SHAPE
    group_of_dtype = Group.SCALE if spec.role.is_scale else Group.DTYPE
    sound = True
    if stored.dtype not in spec.dtypes:
        expected = " or ".join(spec.dtypes)
        problems.add(group_of_dtype, f"{name} ({stored.shard}): {stored.dtype}, expected {expected}")
        sound = False
    if stored.shape != spec.shape:
        note = ""
        if spec.role.is_scale:
            note = _grid(spec) + ("; it is the transposed grid" if stored.shape == spec.shape[::-1] else "")
        text = f"{name} ({stored.shard}): {list(stored.shape)}, expected {list(spec.shape)}{note}"
        problems.add(group_of_shape, text)
        sound = False
    if sound and spec.role.is_scale and not headers_only:
        _check_scale_values(name, stored, shards, problems)


def _check_scale_values(name: str, stored: StoredTensor, shards: ShardSet, problems: Problems) -> None:
    scale = shards.read(name)
    flat = scale.reshape(-1)
    n_wrong, first = 0, -1
    # In pieces: the scales of a released Engram table are 3 GB, and the test makes temporaries of their size.
    for start in range(0, flat.numel(), _PIECE):
        piece = flat[start : start + _PIECE]
        wrong = find_not_power_of_two(piece) if stored.dtype == "F32" else piece.view(torch.uint8) == E8M0_NAN
        count = int(wrong.sum())
        if count and first < 0:
            first = start + int(wrong.to(torch.uint8).argmax())
        n_wrong += count
    if not n_wrong:
        return
    place = [int(index) for index in np.unravel_index(first, stored.shape)]
    if stored.dtype == "F32":
        what = f"{float(flat[first]):g}, which is no power of two"
    else:
        what = f"byte {E8M0_NAN}, which is no number"
    more = f" (and {n_wrong - 1} more)" if n_wrong > 1 else ""
    problems.add(Group.SCALE, f"{name} ({stored.shard}): at {place} is {what}{more}")


def _grid(spec: TensorSpec) -> str:
    block = "32x32 block" if spec.role is Role.BLOCK_SCALE else "row and 32 columns"
    return f", one scale per {block} of {list(spec.logical_shape)} values"
