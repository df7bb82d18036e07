"""Change files of a copied checkpoint. Copies are links: a changed file takes the link's place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"I64": np.int64, "F32": np.float32}


def replace_json(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace a JSON file by a changed copy."""
    data = json.loads(path.read_text())
    change(data)
    path.unlink()
    path.write_text(json.dumps(data))


def rewrite_tensors(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace ``model.safetensors`` by one with changed tensors, and its index by one that lists them.

    ``change`` gets name -> (dtype, shape, bytes) and may put numpy arrays in.
    """
    shard = path / "model.safetensors"
    raw = shard.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    body = memoryview(raw)[8 + size :]
    tensors: dict[str, Any] = {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])]) for name, entry in header.items()
    }
    change(tensors)
    out: dict[str, Any] = {}
    chunks = []
    offset = 0
    for name, value in tensors.items():
        if isinstance(value, np.ndarray):
            code = next(k for k, v in DTYPES.items() if v == value.dtype)
            value = (code, list(value.shape), memoryview(value.tobytes()))
        dtype, shape, data = value
        out[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        chunks.append(data)
        offset += len(data)
    text = json.dumps(out).encode()
    text += b" " * (-len(text) % 8)
    shard.unlink()
    shard.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *chunks]))

    def relist(index: dict[str, Any]) -> None:
        index["weight_map"] = dict.fromkeys(out, "model.safetensors")

    replace_json(path / "model.safetensors.index.json", relist)
