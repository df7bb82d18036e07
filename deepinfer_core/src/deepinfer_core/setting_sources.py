"""Where the values of settings come from: the environment, a file in TOML, the flags of a command.

Each source gives a layer of raw values with the name of their origin; `deepinfer_core.config` lays them over each other
and checks every value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from deepinfer_core.errors import ConfigError
from deepinfer_core.settings import Setting, did_you_mean, nearest, source_text

MAX_FILE_BYTES = 1 << 20
ENV_PREFIX = "DEEPINFER_"
Known = Mapping[str, Setting]
"""Every setting by its key; keys of tables are dotted."""
Layer = dict[str, tuple[object, str, str]]
"""Key -> raw value, origin, source as a message names it."""


def _is_of_plugin(name: str) -> bool:
    """Whether a variable, such as ``DEEPINFER_CUDA_CACHE``, belongs to a first-party plugin, which reads it itself."""
    from deepinfer_core.plugins.names import FIRST_PARTY  # 20 ms, where something is unknown

    return any(name.startswith(f"{ENV_PREFIX}{plugin.upper()}_") for _, plugin in FIRST_PARTY)


def from_environment(environ: Mapping[str, str], known: Known) -> tuple[Layer, tuple[str, ...]]:
    """What the variables ``DEEPINFER_*`` set, and a warning for each that is no setting."""
    by_name = {declared.env_name(key): (key, declared) for key, declared in known.items()}
    layer: Layer = {}
    warnings: list[str] = []
    for name in sorted(environ):
        if not name.startswith(ENV_PREFIX):
            continue
        if name not in by_name:
            if _is_of_plugin(name):
                continue
            guess = nearest(name.removeprefix(ENV_PREFIX), {other.removeprefix(ENV_PREFIX) for other in by_name})
            hint = f"; did you mean {ENV_PREFIX}{guess}?" if guess else ""
            warnings.append(f"W_ENV: {name} is not a setting, and is ignored{hint}")
            continue
        key, declared = by_name[name]
        # Empty means "not set", except where an empty value says something: false, or an allow list that allows nobody.
        if environ[name] == "" and declared.kind not in ("boolean", "names"):
            continue
        layer[key] = (environ[name], f"environment {name}", name)
    return layer, tuple(warnings)


def from_file(path: Path, known: Known) -> Layer:
    """What a file in TOML sets. Raises ConfigError for a key that is no setting, or where it cannot be read."""
    table = _read_toml(path)
    tables = {key.partition(".")[0] for key in known if "." in key}
    flat: dict[str, object] = {}
    for key, value in table.items():
        if key in tables and isinstance(value, dict):
            flat.update({f"{key}.{inner}": item for inner, item in value.items()})
        else:
            flat[key] = value
    unknown = [key for key in flat if key not in known]
    if unknown:
        listed = ", ".join(f"{key!r}{_guess(key, known)}" for key in unknown)
        raise ConfigError(
            f"{path}: unknown setting{'s' if len(unknown) > 1 else ''} {listed}",
            reason="a misspelt setting would be ignored without a word",
            remedy=_of_requests(unknown) or "correct or remove it; deepinfer generate --help lists the settings",
            details={"unknown": unknown},
        )
    source = f"file {path}"
    for key, no_path in (
        ("model", ""),
        ("plugins.lock", ""),
        ("observe.step_log", "-"),
        ("observe.trace_file", "global"),
    ):
        if isinstance(flat.get(key), str) and flat[key] not in ("", no_path):
            flat[key] = str(path.parent / str(flat[key]))  # the file means the same from every working directory
    return {key: (value, source, source) for key, value in flat.items()}


def _read_toml(path: Path) -> dict[str, Any]:
    import tomllib  # only with --config

    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise ConfigError(f"{path}: larger than {MAX_FILE_BYTES} bytes", remedy="give a settings file in TOML")
        return tomllib.loads(data.decode("utf-8"))
    except OSError as exc:
        raise ConfigError(
            f"cannot read the settings file {path}", reason=exc.strerror or str(exc), remedy="check --config"
        ) from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise ConfigError(f"{path} is not TOML", reason=str(exc), remedy="correct the file") from exc


def from_flags(flags: Mapping[str, object], origin: str, known: Known) -> Layer:
    """What flags set, but for those that are None. Raises ConfigError for a key that is no setting."""
    for key in flags:
        if key not in known:
            raise ConfigError(
                f"no setting named {key!r}{'' if _of_requests([key]) else did_you_mean(key, known)}",
                remedy=_of_requests([key]) or "settings are: " + ", ".join(known),
                details={"unknown": [key]},
            )
    layer: Layer = {}
    for key, raw in flags.items():
        if raw is not None:
            layer[key] = (raw, origin, source_text(key, origin))
    return layer


def _guess(key: str, known: Known) -> str:
    guess = None if _of_requests([key]) else nearest(key, known)
    return f" (did you mean {guess!r}?)" if guess else ""


def _of_requests(keys: Iterable[str]) -> str:
    """The remedy where one of ``keys`` belongs to a request, not to an engine; else empty."""
    from deepinfer_core.parameters.sampling_params import SamplingParams  # only for a message

    for key in keys:
        name = {"num_samples": "n"}.get(key, key)
        if name in attrs.fields_dict(SamplingParams):
            ways = f'an option of deepinfer generate, "{name}" in a JSON line, or SamplingParams({name}=...)'
            return f"{name} belongs to each request: give it as {ways}"
    return ""
