"""Records of one prefill and one decode step, recorded from the reference packer (`vectors/steps.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import deepinfer_contracts
from deepinfer_contracts import CONTRACTS, DTYPES, Limits, Record

_DATA = json.loads((Path(__file__).parent / "vectors" / "steps.json").read_text(encoding="utf-8"))
CASES = [(kind, name) for kind in ("prefill", "decode") for name in _DATA[kind]]


def limits(**changes: Any) -> Limits:
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in _DATA["limits"].items()}
    return Limits(**{**values, **changes})


def record(kind: str, name: str) -> Any:
    """A fresh record; its arrays may be written to."""
    cls: type[Record] = getattr(deepinfer_contracts, name)
    values = {}
    for field, definition in CONTRACTS[name].fields[2:]:
        if field in _DATA[kind][name]:
            values[field] = _value(_DATA[kind][name][field], definition)
    return cls(**values)


def _value(raw: Any, definition: str) -> Any:
    if "[" not in definition:
        return {int(k): v for k, v in raw.items()} if isinstance(raw, dict) else raw
    dtype = DTYPES[definition.split("[")[0]][0]
    if isinstance(raw, dict):
        return {int(k): np.array(v, dtype=dtype) for k, v in raw.items()}
    if definition.endswith("/draft_step"):
        return [None if v is None else np.array(v, dtype=dtype) for v in raw]
    array = np.array(raw, dtype=dtype)
    return array.reshape(0, 2) if array.size == 0 and definition.count(",") else array
