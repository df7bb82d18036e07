"""Contract records with a few values in every field: what ``bind_inputs`` has to pass on, whatever the field."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from deepinfer_contracts import CONTRACTS, DTYPES, Record

NAMES = ("InputMetadata", "InputMetadataV41", "SamplerInputs")
"""The records that the engine hands to a backend."""
KEYS = (1, 2)
"""Compression ratios of a field that has an array for each."""


def filled(name: str, length: int) -> Record:
    """A record with other values in each field: arrays of ``length`` rows, one for each of :data:`KEYS` or of two draft
    steps where the schema has several of a field. The shapes are not those of any step."""
    record: Record = getattr(importlib.import_module("deepinfer_contracts"), name)()
    described = dict(CONTRACTS[name].fields)
    for place, field in enumerate(record.FIELDS):
        setattr(record, field, _value(described[field], 3 * place + 1, length))
    return record


def _value(described: str, first: int, length: int) -> Any:
    """A value of a field as the contract describes it: ``i32``, ``f32[N]``, ``i32[T, 4]/ratio``."""
    text, _, per = described.partition("/")
    if per == "ratio":
        return {key: _value(text, first + key, length) for key in KEYS}
    if per == "draft_step":
        return [_value(text, first, length), None, _value(text, first + 1, length)]
    dtype, bracket, shape = text.partition("[")
    if not bracket:
        return first
    width = 2 if _dimensions(shape.rstrip("]")) == 2 else 0
    values = np.arange(first, first + length * max(width, 1)) % 2 if dtype == "bool" else None
    if values is None:
        values = np.arange(first, first + length * max(width, 1))
    array = values.astype(DTYPES[dtype][0])
    if len(array) > 2 and array.dtype.kind in "iuf":  # the ends of its range: a sign, a top bit
        limits = np.finfo(array.dtype) if array.dtype.kind == "f" else np.iinfo(array.dtype)
        array[-2:] = limits.min, limits.max
    return array.reshape(length, width) if width else array


def _dimensions(shape: str) -> int:
    """Dimensions of ``T, align(max_pos // r, 128)``: commas outside of parentheses, and one more."""
    depth, count = 0, 1
    for sign in shape.partition("|")[0]:
        depth += (sign == "(") - (sign == ")")
        count += sign == "," and depth == 0
    return count
