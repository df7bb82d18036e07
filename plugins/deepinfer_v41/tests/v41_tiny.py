"""Random tiny checkpoints and drivers over them, made once for each set of options."""

from __future__ import annotations

import atexit
import fcntl
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint
from torch import Tensor
from v41_driver import Driver
from v41_models import Variant, cpu_backend, make_driver
from v41_recording import Recorder

from deepinfer_v41.config import V41Config

PREFIX = "deepinfer-v41-tests-"

SMALL = {
    "num_hidden_layers": 6,
    "num_nextn_predict_layers": 2,
    "compress_ratios": [0, 2, 2, 1, 1, 1, 0, 0],
    "kv_source_layer_ids": [1, 3],
    "index_source_layer_ids": [1, 3, 5],
    "candidate_source_layer_id": 3,
    "engram_layer_ids": [1],
    "engram_num_embeddings": [1362],
    "dspark_target_layer_ids": [3, 4, 5],
}
"""Overrides for half the layers: every kind of them, and two draft stages."""


@functools.cache
def _root() -> Path:
    """A folder for this process. It is locked while the process lives; those of killed ones go now."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/lock"):
        with suppress(OSError):  # BlockingIOError: its process lives
            handle = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(handle)
    root = Path(tempfile.mkdtemp(prefix=PREFIX))
    new = root / "new"
    fcntl.flock(os.open(new, os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)  # open, and so locked, to the end
    new.rename(root / "lock")
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


@functools.cache
def _written(overrides: str) -> Path:
    path = _root() / f"tiny-{len(list(_root().iterdir()))}"
    write_tiny_checkpoint(path, seed=3, overrides=json.loads(overrides))
    return path


def tiny_path(**overrides: Any) -> Path:
    """A random checkpoint; the same options give the same folder. An override ``"null"`` removes the field."""
    return _written(json.dumps({k: None if v == "null" else v for k, v in overrides.items()}, sort_keys=True))


def edited(path: Path, edit: Callable[[dict[str, Tensor]], Mapping[str, Tensor] | None]) -> Path:
    """A copy of the checkpoint with some tensors changed; ``edit`` changes the dict in place or returns the changes."""
    target = Path(tempfile.mkdtemp(dir=_root()))
    tensors = load_file(path / "model.safetensors")
    changed = edit(tensors)
    tensors.update(changed or {})
    save_file(tensors, target / "model.safetensors")
    (target / "config.json").write_text((path / "config.json").read_text())
    return target


@functools.cache
def tiny_driver(path: Path, variant: Variant = "plain") -> Driver:
    return make_driver(path, variant, blocks=80)


def tiny_recorded(
    path: Path, variant: Variant = "plain", extra: Mapping[str, Callable[[Any], Any]] | None = None
) -> tuple[Driver, Recorder]:
    config = V41Config.from_dict(json.loads((path / "config.json").read_text()))
    recorder = Recorder(cpu_backend(), config, extra)
    return make_driver(path, variant, backend=recorder.backend, blocks=80), recorder


def prompt(length: int, seed: int = 0, vocab: int = 500) -> list[int]:
    """Random ids, none of them special."""
    drawn = torch.randint(3, vocab, (length,), generator=torch.Generator().manual_seed(seed))
    return [0, *drawn.tolist()][:length]
