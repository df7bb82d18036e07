"""Read ``config.json`` of a checkpoint into a :class:`ModelCard`: data only, limited in size; no plugin is imported."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from deepinfer_core.errors import ModelConfigError, ModelNotFound
from deepinfer_core.types import ModelCard

MAX_CONFIG_BYTES = 4 << 20
_LAYOUT = "a folder with config.json, *.safetensors and tokenizer.json"
_OTHERWISE = "leave --model out for the small checkpoint of an installed plugin"


def read_model_card(model: str | os.PathLike[str], *, otherwise: str = _OTHERWISE) -> ModelCard:
    """The card of the checkpoint in folder ``model``.

    :param otherwise: What a reader can do but give another folder, for the remedy where there is none.

    :raises ModelNotFound: the folder or its ``config.json`` does not exist.
    :raises ModelConfigError: ``config.json`` is not a JSON object with ``architectures``.
    """
    folder = Path(os.path.expanduser(model))  # not Path.expanduser, which raises for a user that nobody knows
    _require_folder(folder, otherwise)
    path = folder / "config.json"
    data = _read(path, folder)
    config = _parse(data, path)
    return ModelCard(
        path=folder, architecture=_architecture(config, path), model_type=_model_type(config, path), config=config
    )


def _require_folder(folder: Path, otherwise: str) -> None:
    try:
        mode = folder.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError) as exc:  # ValueError: no name that a file can have
        raise _no_folder(folder, otherwise) from exc
    except OSError as exc:  # such as a folder above it that may not be entered
        raise ModelNotFound(
            f"cannot read the folder {folder}",
            reason=exc.strerror or str(exc),
            remedy="check the path, and the rights on the folders above it",
            details={"model": str(folder)},
        ) from exc
    if not stat.S_ISDIR(mode):
        raise ModelNotFound(
            f"{folder} is a file, and a model is a folder",
            reason=f"a checkpoint is {_LAYOUT}",
            remedy="give the folder that holds it",
            details={"model": str(folder)},
        )


def _no_folder(folder: Path, otherwise: str) -> ModelNotFound:
    looks_remote = len(folder.parts) == 2 and not folder.is_absolute() and folder.parts[0] not in (".", "..")
    remedy = "give the path of a checkpoint folder"
    if looks_remote:
        remedy += "; names on a model hub are not looked up, so download it first"
    return ModelNotFound(
        f"no such folder: {folder}",
        reason=f"a checkpoint is {_LAYOUT}",
        remedy=remedy + (f", or {otherwise}" if otherwise else ""),
        details={"model": str(folder)},
    )


def _read(path: Path, folder: Path) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError as exc:
        inside = sorted(entry.name for entry in folder.iterdir())
        shown = ", ".join(inside[:5]) + (", ..." if len(inside) > 5 else "")
        raise ModelNotFound(
            f"{folder} has no config.json",
            reason=f"the folder holds: {shown}" if inside else "the folder is empty",
            remedy=f"a checkpoint is {_LAYOUT}; check the path, or download it again",
            details={"model": str(folder)},
        ) from exc
    except OSError as exc:
        raise ModelNotFound(
            f"cannot read {path}", reason=exc.strerror or str(exc), remedy="check the file and its permissions"
        ) from exc
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelConfigError(
            f"{path} is larger than {MAX_CONFIG_BYTES >> 20} MiB",
            reason="a model configuration has a few kilobytes",
            remedy="check that the file is the config.json of the checkpoint",
        )
    return data


def _parse(data: bytes, path: Path) -> dict[str, Any]:
    try:
        config = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise ModelConfigError(
            f"{path} is not JSON", reason=str(exc), remedy="download the file again, or correct it"
        ) from exc
    if not isinstance(config, dict):
        raise ModelConfigError(
            f"{path} holds a JSON {_json_type(config)}, expected an object",
            remedy="check that the file is the config.json of the checkpoint",
        )
    return config


def _architecture(config: dict[str, Any], path: Path) -> str:
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise ModelConfigError(
            f"{path} names no architecture",
            reason=f"architectures must be a list with a name, got {names!r}"[:300],
            remedy="take config.json from the released checkpoint",
        )
    if len(names) > 1:
        raise ModelConfigError(
            f"{path} names several architectures: {', '.join(names)}"[:300],
            reason="an engine runs one",
            remedy="leave the one to run in architectures",
        )
    return str(names[0])


def _model_type(config: dict[str, Any], path: Path) -> str:
    value = config.get("model_type", "")
    if not isinstance(value, str):
        raise ModelConfigError(f"{path}: model_type must be a text, got {value!r}"[:300], remedy="correct it")
    return value


def _json_type(value: object) -> str:
    return {list: "list", str: "text", bool: "boolean", type(None): "null"}.get(type(value), "number")
