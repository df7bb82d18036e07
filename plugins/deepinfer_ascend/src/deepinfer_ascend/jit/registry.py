"""Every kernel factory, by name, with the sizes that the survey and the tests make."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

MODULES = (
    "norm", "swiglu", "rotary", "cast", "store", "compress", "mask", "filters", "draw", "mix", "mhc", "indices",
    "tables", "decode", "feed", "gather", "dense", "select", "combine", "engram",
)  # fmt: skip
"""Of ``tl``: importing one imports TileLang."""
SIZES: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    "rms_rows": ({"width": 64}, {"width": 512}, {"width": 5120}),
    "swiglu_rows": ({"inner": 64}, {"inner": 2304}),
    "rotary_rows": ({"width": 64, "turned": 16}, {"width": 512, "turned": 64}),
    "cast_rows": (
        {"width": 256},
        {"width": 5120},
        {"width": 128, "fmt": "e2m1"},
        {"width": 512, "fmt": "e2m1", "group": 16, "sf": "e4m3"},
    ),
    "store_entries": (
        {"format": "v41_fp4", "width": 64, "values": True},
        {"format": "v41", "width": 512, "values": False},
        {"format": "v41", "width": 512, "values": True},
        {"format": "v41_fp4", "width": 512, "values": False},
        {"format": "index_fp4", "width": 128, "values": False},
    ),
    "store_numbers": ({"width": 64, "dtype": "float32"}, {"width": 512, "dtype": "bfloat16"}),
    "load_runs": (
        {"format": "v41_fp4", "width": 64},
        {"format": "v41", "width": 512},
        {"format": "v41_fp4", "width": 512},
    ),
    "load_numbers": ({"width": 64, "stored": "float32"}, {"width": 512, "stored": "bfloat16"}),
    "load_codes": ({"format": "index_fp4", "width": 128},),
    "compress_chunk": ({"width": 64, "ratio": 2}, {"width": 512, "ratio": 2}),
    "compress_step": ({"width": 64, "ratio": 2}, {"width": 512, "ratio": 2}),
    "ring_chunk": ({"width": 64}, {"width": 512}),
    "ring_step": ({"width": 64}, {"width": 512}),
    "ring_copy": ({"width": 64}, {"width": 512}),
    "mask_rows": ({"width": 1536}, {"width": 129_280}),
    "logprob_rows": ({"width": 1536}, {"width": 129_280}),
    "draw_rows": ({"width": 1536}, {"width": 129_280}),
    "mix_coefficients": ({"streams": 4, "iters": 20},),
    "expand_rows": ({"width": 5120, "streams": 4},),
    "collapse_rows": ({"width": 100, "streams": 4}, {"width": 5120, "streams": 4}),
    "post_rows": ({"width": 100, "streams": 4}, {"width": 5120, "streams": 4}),
    "window_rows": ({},),
    "table_rows": ({},),
    "joined_rows": ({},),
    "slot_rows": ({},),
    "picked_rows": ({},),
    "request_rows": ({},),
    "ratio_rows": ({"ratio": 2}, {"ratio": 1}),
    "feed_rows": ({"drafts": 3, "grams": 3}, {"drafts": 5, "grams": 4}),
    "corrected_ends": ({},),
    "verified_lengths": ({"drafts": 5},),
    "draft_rows": ({"block": 5, "window": 32}, {"block": 5, "window": 128}),
    "topk_rows": ({"dtype": "float32"}, {"dtype": "bfloat16"}),
    "block_max_rows": ({"block": 8, "dtype": "float32"},),
    "restored_rows": ({"block": 8},),
    "combine_rows": (
        {"width": 100, "choices": 6, "biased": True},
        {"width": 5120, "choices": 6, "biased": True},
    ),
    "hashed_rows": ({"grams": 3, "heads": 4}, {"grams": 4, "heads": 8}),
    "table_values": ({"width": 64, "columns": 8}, {"width": 256, "columns": 24}),
    "gated_rows": ({"width": 100, "streams": 4}, {"width": 5120, "streams": 4}),
    "ring_indices": ({"width": 32}, {"width": 128}),
    "run_indices": ({"width": 512},),
    "gather_rows": ({"width": 256}, {"width": 5120}),
    "dense_rows": ({"outputs": 128, "inputs": 256}, {"outputs": 1280, "inputs": 5120}),
}
"""The shipped checkpoint's and the released model's."""
DOES_NOT_LOWER: Mapping[str, str] = {}
"""Kernel -> why; one that begins to lower leaves the list."""
_factories: dict[str, Callable[..., Any]] = {}


def kernel(factory: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of a factory in ``tl``."""
    _factories[factory.__name__] = factory
    return factory


@functools.cache
def factories() -> Mapping[str, Callable[..., Any]]:
    """Name -> factory, of every module. Imports TileLang."""
    for name in MODULES:
        importlib.import_module(f"deepinfer_ascend.tl.{name}")
    return dict(_factories)


def tasks() -> list[tuple[str, Mapping[str, Any]]]:
    """Every kernel in every size."""
    return [(name, sizes) for name, listed in SIZES.items() for sizes in listed]
