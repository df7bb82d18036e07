"""Byte formats of cache entries are the core's (``deepinfer_core.caches``); here is what torch calls their numbers."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from deepinfer_core.caches.formats import FORMATS, INDEX_FORMATS, KV_FORMATS, CacheFormat, lookup

__all__ = ["FORMATS", "INDEX_FORMATS", "KV_FORMATS", "RAW_DTYPES", "CacheFormat", "lookup"]

RAW_DTYPES: Mapping[str, torch.dtype] = {"bf16": torch.bfloat16, "f32": torch.float32}
"""``CacheFormat.raw`` -> dtype of the entries."""
