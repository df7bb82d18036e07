"""Where each layer's entries lie in a unit (a block or a slot), and how many bytes a unit has.

Block arena (pools main and index share block ids; ``spec/model.md`` 4.3): one block holds, for each owner layer in
order, its index page and then its main page, each padded to 32 bytes::

    block b:  | index L2 | main L2 | index L8 | main L8 | ... | pad |    stride = lcm(128, main entry bytes)

Slot arenas (``spec/engine.md`` 3.1): one slot holds the ring of each layer in order, padded to 32 bytes, stride
lcm(32, window entry bytes). Compressor state is fp32 ``[ring, 2, width]`` for each layer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from attrs import frozen

from deepinfer_core.caches.formats import lookup
from deepinfer_core.errors import ShapeContractError
from deepinfer_core.types import CacheLayer, CacheSpec

PAGE_ALIGN = 32
BLOCK_ALIGN = 128
ARENA_OF_POOL: Mapping[str, str] = {"main": "block", "index": "block", "swa": "swa", "state": "state"}
ARENAS = ("block", "swa", "state")


@frozen
class Placement:
    """Where a layer's page begins inside a unit, in bytes."""

    offset: int
    layer: CacheLayer


@frozen
class Layout:
    """One arena: where each (cache, layer) lies in a unit, and the bytes from a unit to the next."""

    stride: int
    places: Mapping[tuple[str, int], Placement]


def page_bytes(spec: CacheSpec, layer: CacheLayer) -> int:
    """Bytes of one layer's share of a unit, without padding."""
    if spec.pool == "state":
        return layer.entries * 2 * layer.width * 4
    return layer.entries * lookup(layer.format).entry_bytes(layer.width)


def layout_of(specs: Sequence[CacheSpec], arena: str) -> Layout:
    """The unit layout of ``arena`` (``block``, ``swa`` or ``state``) for all ``specs`` of its pools."""
    mine = [s for s in specs if ARENA_OF_POOL[s.pool] == arena]
    places: dict[tuple[str, int], Placement] = {}
    offset = 0
    if arena == "block":
        order = sorted(
            ((layer.layer, 0 if spec.pool == "index" else 1, spec, layer) for spec in mine for layer in spec.layers),
            key=lambda item: item[:2],
        )
        pages = [(spec, layer) for _, _, spec, layer in order]
    else:
        pages = [(spec, layer) for spec in mine for layer in spec.layers]
    rows = [1]
    for spec, layer in pages:
        places[spec.name, layer.layer] = Placement(offset, layer)
        offset += -(-page_bytes(spec, layer) // PAGE_ALIGN) * PAGE_ALIGN
        if spec.pool in ("main", "swa"):
            rows.append(lookup(layer.format).entry_bytes(layer.width))
    unit = math.lcm(BLOCK_ALIGN if arena == "block" else PAGE_ALIGN, *rows)
    return Layout(stride=-(-offset // unit) * unit, places=places)


def unit_bytes(specs: Sequence[CacheSpec], pool: str) -> int:
    """Bytes of one unit of ``pool``, padding included; a block counts main and index together.

    What ``Backend.unit_bytes`` answers on every device. Raises ShapeContractError for an unknown pool.
    """
    if pool not in ARENA_OF_POOL:
        raise layout_error("backend.unit_bytes", "pool", f"one of {sorted(ARENA_OF_POOL)}", pool)
    return layout_of(specs, ARENA_OF_POOL[pool]).stride


def layout_error(op: str, argument: str, expected: object, got: object) -> ShapeContractError:
    """An E_SHAPE naming the call, its argument, what was expected and what came. The caller raises it."""
    return ShapeContractError(
        f"{op}: argument '{argument}' must be {expected}, got {got}",
        reason="the caller and the caches disagree on what there is",
        remedy="this is a fault of the model plugin or of the engine, please report it",
        details={"op": op, "argument": argument, "expected": str(expected), "got": str(got)},
    )
