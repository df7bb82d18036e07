"""The toy model and backend of the engine's tests, with rings that take back five tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from engine_toys import BLOCK, TOY_HINTS, WINDOW, ToyBackend, ToyCaches, ToyModel

from deepinfer_core.errors import ModelError
from deepinfer_core.types import CacheLayer, CacheSpec, Capabilities

BACKTRACK = 6
RING = WINDOW + BACKTRACK
HINTS = attrs.evolve(TOY_HINTS, swa_ring=RING, backtrack=BACKTRACK)
SPECS = [
    CacheSpec("main", "main", [CacheLayer(0, BLOCK, "i64", 1)]),
    CacheSpec("swa", "swa", [CacheLayer(0, RING, "i64", 1)]),
]


class NumpyBackend(ToyBackend):
    """Batch invariant: there is nothing to round."""

    capabilities = Capabilities(name="toy", device_type="host", arch="none", features=frozenset({"batch_invariant"}))

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> ToyCaches:
        caches = super().alloc_caches(specs, units)
        caches.swa = np.full((units["swa"], RING), 8_888, dtype=np.int64)
        return caches


class ToyLM(ToyModel):
    """Refuses to run before it was loaded."""

    def __init__(self, backend: Any) -> None:
        super().__init__(RING)
        self.backend = backend
        self.is_loaded = False

    def load(self, path: Path) -> None:
        self.is_loaded = True

    def forward(self, inputs: Any, caches: ToyCaches) -> Any:
        if not self.is_loaded:
            raise ModelError("the model was not loaded", remedy="call load before forward")
        return super().forward(inputs, caches)
