"""How one setting is declared, and how its value is read from a flag, a TOML file, the environment or Python.

A setting is declared once, as the metadata of an attrs field; command-line options, the file reader, the environment
reader and the reference page all come from that declaration.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import attrs
from attrs import frozen

from deepinfer_core.errors import ConfigError

Kind = Literal["text", "integer", "boolean", "size", "names", "ids", "numbers", "table"]

_FALSE = frozenset({"", "0", "false", "no", "off"})
_TRUE = frozenset({"1", "true", "yes", "on"})
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_UNITS = {"": 1, "b": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("", 1024), ("b", 1000))
}


@frozen
class Setting:
    """Declaration of one setting. ``optional`` means that None (not set) is a value of it."""

    help: str
    kind: Kind
    optional: bool = False
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    modulo: int | None = None
    """Any integer is a value, and stands for its remainder."""
    env: str | None = None
    """Name in the environment; None: ``DEEPINFER_`` and the key in capitals, dots as underscores."""

    def env_name(self, key: str) -> str:
        return self.env or "DEEPINFER_" + key.replace(".", "_").upper()

    def range_text(self) -> str:
        """The allowed values, for help and messages."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = {"integer": "an integer", "size": "a size such as 512MiB", "boolean": "true or false"}.get(self.kind)
        if noun is None:
            return {
                "text": "a text",
                "names": "names, comma separated",
                "ids": "token ids, comma separated",
                "numbers": "numbers above 0, comma separated",
                "table": "KIND:NAME=DISTRIBUTION",
            }[self.kind]
        if self.modulo is not None:
            return f"{noun}, taken modulo {self.modulo}"
        if self.minimum is not None and self.maximum is not None:
            return f"{noun} from {self.minimum} to {self.maximum}"
        if self.minimum is not None:
            return f"{noun} of at least {self.minimum}"
        return noun


def setting(default: Any, help: str, *, kind: Kind, **declared: Any) -> Any:
    """An attrs field that carries its :class:`Setting`."""
    declaration = Setting(help=help, kind=kind, optional=default is None, **declared)
    return attrs.field(default=default, metadata={"setting": declaration}, kw_only=True)


SHORTEST_BEGINNING = 4
"""Shorter ones begin too much."""


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that ``name`` begins, or is most likely a misspelling of; ties go to the first in sorted order."""
    begun = [one for one in sorted(known) if one.startswith(name)] if len(name) >= SHORTEST_BEGINNING else []
    if begun:
        return min(begun, key=len)
    found = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"``, or nothing when no known name is near."""
    guess = nearest(name, known)
    return f"; did you mean {guess!r}?" if guess else ""


def parse_size(text: str) -> int | None:
    """Bytes of ``512MiB`` or ``512m`` (1024), ``512MB`` (1000) or ``4096``; None when it is no size."""
    match = _SIZE.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        return None
    factor = _UNITS[match[2].lower()]
    whole, _, fraction = match[1].partition(".")
    scaled = int(whole + fraction) * factor  # integers throughout: 0.1GB is exact, and a huge number stays exact
    return scaled // 10 ** len(fraction) if scaled % 10 ** len(fraction) == 0 or factor > 1 else None


def read_value(key: str, declared: Setting, raw: object, source: str) -> Any:
    """The value of setting ``key``, converted and checked.

    :param raw: Text from a flag or the environment, or a value from TOML or Python.
    :param source: Where it came from, for the message (``--backend``, ``DEEPINFER_BACKEND``, ``file x.toml``).
    :raises ConfigError: naming setting, value and range.
    """
    if raw is None and declared.optional:
        return None
    value = _convert(declared, raw)
    if value is _UNREADABLE:
        raise _refuse(key, declared, raw, source)
    if isinstance(value, int) and not isinstance(value, bool):
        if declared.modulo is not None:
            value %= declared.modulo
        too_small = declared.minimum is not None and value < declared.minimum
        too_large = declared.maximum is not None and value > declared.maximum
        if too_small or too_large:
            raise _refuse(key, declared, raw, source)
    if declared.choices and value not in declared.choices:
        raise _refuse(key, declared, raw, source)
    return value


_OPTION_NAMES = {
    "plugins.disable": "--no-plugin",
    "plugins.enable": "--plugin",
    "plugins.lock": "--plugin-lock",
}


def option_name(key: str) -> str:
    """The option of a setting on the command line: its own name, without that of its table."""
    return _OPTION_NAMES.get(key, "--" + key.rpartition(".")[2].replace("_", "-"))


def source_text(key: str, origin: str) -> str:
    """Where a value came from, as a message names it: ``--draft-tokens`` for the origin ``flag``."""
    if origin == "flag":
        return option_name(key)
    if origin == "argument":
        return f"argument {key}"
    if origin == "the results":
        return f"{key} in the results"
    return origin.removeprefix("environment ")


def _refuse(key: str, declared: Setting, raw: object, source: str) -> ConfigError:
    guess = did_you_mean(raw, declared.choices) if isinstance(raw, str) and declared.choices else ""
    # An option that may be given several times has its values in a tuple, of which nobody typed the brackets.
    typed = ",".join(raw) if isinstance(raw, tuple) and all(isinstance(item, str) for item in raw) else raw
    return ConfigError(
        f"{key} must be {declared.range_text()}, got {typed!r}{guess}",
        reason=f"set by {source}",
        remedy=f"give {key} a value in that range, or leave it out",
        details={"key": key, "source": source},
    )


_UNREADABLE = object()


def _convert(declared: Setting, raw: object) -> Any:
    match declared.kind:
        case "text":
            if isinstance(raw, os.PathLike):
                raw = os.fspath(raw)
            return raw if isinstance(raw, str) and raw else _UNREADABLE
        case "boolean":
            return _boolean(raw)
        case "integer" | "size":
            return _integer(raw, is_size=declared.kind == "size")
        case "names":
            return _names(raw)
        case "ids":
            return _ids(raw)
        case "numbers":
            return _numbers(raw)
        case "table":
            return _table(raw)


def _boolean(raw: object) -> Any:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        word = raw.strip().lower()
        if word in _TRUE or word in _FALSE:
            return word in _TRUE
    return _UNREADABLE


def _integer(raw: object, *, is_size: bool) -> Any:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str):
        if is_size:
            size = parse_size(raw)
            return _UNREADABLE if size is None else size
        if re.fullmatch(r"\s*[+-]?\d{1,4000}\s*", raw, re.ASCII):
            return int(raw)
    return _UNREADABLE


def _ids(raw: object) -> Any:
    """Token ids, rising, each once. Which ids there are is for the model to say."""
    parts = [part for part in raw.split(",") if part.strip()] if isinstance(raw, str) else raw
    if not isinstance(parts, list | tuple):
        return _UNREADABLE
    values = [_integer(part, is_size=False) for part in parts]
    if any(value is _UNREADABLE or not 0 <= value < 2**31 for value in values):
        return _UNREADABLE
    return tuple(sorted(set(values)))


def _numbers(raw: object) -> Any:
    """One or more finite numbers above 0."""
    parts: list[Any]
    if isinstance(raw, str):
        parts = raw.split(",")
    else:
        parts = list(raw) if isinstance(raw, list | tuple) else [raw]
    values = []
    for part in parts:
        if isinstance(part, bool) or not isinstance(part, str | int | float):
            return _UNREADABLE
        try:
            values.append(float(part))
        except (ValueError, OverflowError):
            return _UNREADABLE
    if not values or not all(0 < value < float("inf") for value in values):
        return _UNREADABLE
    return tuple(values)


def _names(raw: object) -> Any:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, Iterable) and not isinstance(raw, Mapping | bytes):
        names = tuple(raw)
        if all(isinstance(name, str) and name for name in names):
            return names
    return _UNREADABLE


def _table(raw: object) -> Any:
    """``{"backend:toy": "acme"}`` as sorted pairs (hashable, and the same whatever the order in the file)."""
    if isinstance(raw, str):
        pairs = [part.partition("=") for part in raw.split(",") if part.strip()]
        if any(not (key.strip() and sign and value.strip()) for key, sign, value in pairs):
            return _UNREADABLE
        raw = {key.strip(): value.strip() for key, _, value in pairs}
    elif isinstance(raw, tuple | list):
        if not all(isinstance(item, str) for item in raw):
            return _UNREADABLE
        return _table(",".join(raw))
    if isinstance(raw, Mapping) and all(isinstance(k, str) and isinstance(v, str) for k, v in raw.items()):
        return dict(sorted(raw.items()))
    return _UNREADABLE
