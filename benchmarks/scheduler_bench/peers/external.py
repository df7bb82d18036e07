"""The scheduler that ``DEEPINFER_PEER_ENGINE`` names, if any."""

from __future__ import annotations

import importlib
import importlib.util
import os
from pathlib import Path
from typing import Any

from .interface import Peer, PeerSettings

VARIABLE = "DEEPINFER_PEER_ENGINE"
ABSENT = (
    f"no external scheduler: {VARIABLE} is not set; point it to a module (a path or a dotted name) that has"
    " deepinfer_peer(settings), as benchmarks/README.md says"
)


class NoPeer(RuntimeError):
    """The variable names something that cannot be used."""


def is_named() -> bool:
    return bool(os.environ.get(VARIABLE))


def open_external(settings: PeerSettings) -> Peer:
    """Raises NoPeer with what to set or add."""
    name = os.environ.get(VARIABLE, "")
    if not name:
        raise NoPeer(ABSENT)
    # Read by the public release at construction: its draft length is no setting of a call.
    os.environ["DEEPINFER_USE_NEXTN_DECODE"] = str(settings.num_draft)
    make = getattr(load(name), "deepinfer_peer", None)
    if make is None:
        raise NoPeer(f"{VARIABLE}: {name} has no deepinfer_peer(settings)")
    peer: Peer = make(settings)
    return peer


def load(name: str) -> Any:
    path = Path(name)
    try:
        if not path.is_file():
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(path.name.split(".")[0], path)
        if spec is None or spec.loader is None:
            raise NoPeer(f"{VARIABLE}: {name} is no module that Python can load")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise NoPeer(f"{VARIABLE}: {name} cannot be imported: {error}") from error
    return module
