"""A measured profile and its file: JSON, found again by everything that changes what a step costs."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
from attrs import frozen

if TYPE_CHECKING:
    from deepinfer_native import CostModel

VERSION = 1
"""Of the file's form and of the way of measuring."""


@frozen
class Profile:
    """Cost models of both kinds of steps, with the number of measured points and the relative errors of the fits."""

    prefill: CostModel
    decode: CostModel
    points: int
    prefill_error: float
    decode_error: float


def profile_key(facts: Mapping[str, Any]) -> str:
    """A name for what was measured: equal facts, equal key."""
    text = json.dumps({"version": VERSION, **facts}, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def model_fingerprint(path: Path, config: Mapping[str, Any]) -> str:
    """What of a checkpoint decides its speed: configuration, and names and sizes of its files."""
    files = sorted((f.name, f.stat().st_size) for f in path.glob("*.safetensors")) if path.is_dir() else []
    text = json.dumps([dict(config), files], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def host_facts() -> dict[str, Any]:
    """The machine: a cache directory may be shared by several."""
    return {"host": platform.node(), "machine": platform.machine(), "cores": os.cpu_count()}


def profile_path(key: str) -> Path:
    """Where the profile of ``key`` is kept: the platform's cache directory."""
    from platformdirs import user_cache_path  # only with a target

    return user_cache_path("deepinfer") / "profiles" / f"{key}.json"


def load(path: Path) -> Profile | None:
    """The profile in ``path``; None for a file that is absent, or is no profile (it is measured again)."""
    try:
        data = json.loads(path.read_text("utf-8"))
        return Profile(
            _model(data["prefill"]),
            _model(data["decode"]),
            int(data["points"]),
            float(data["prefill_error"]),
            float(data["decode_error"]),
        )
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def save(path: Path, profile: Profile, facts: Mapping[str, Any], points: Sequence[Any]) -> None:
    """Write a profile as a whole or not at all. Raises OSError."""
    record = {
        **attrs.asdict(profile),
        "facts": dict(facts),
        "measured": [attrs.asdict(point) for point in points],
    }
    write_json(path, record)


def write_json(path: Path, record: Mapping[str, Any]) -> None:
    """Write ``record`` as a whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f"{path.stem}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(record, stream, indent=1, default=str)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _model(data: Mapping[str, Any]) -> CostModel:
    from deepinfer_native import AttentionKind, CostModel, CostRow

    model = CostModel(**{**data, "attention": [AttentionKind(**kind) for kind in data["attention"]]})
    model.predict_ns([CostRow(0, 1, 1)])  # the core's own check of every value
    return model
