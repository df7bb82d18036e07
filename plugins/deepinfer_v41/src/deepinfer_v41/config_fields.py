"""Typed reading of ``config.json`` fields: one declaration a field, every problem collected before any is raised.

A declaration lives in the metadata of an attrs attribute, so :class:`deepinfer_v41.config.V41Config` is at once the
record, the list of accepted fields and their documentation.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from deepinfer_core.errors import ModelConfigError

REQUIRED: Final = object()
MISSING: Final = object()
_KEY: Final = "deepinfer_v41.field"


@attrs.frozen
class Problem:
    """One thing wrong with a configuration: which field, its value, the rule it breaks, what to do."""

    field: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        found = "is missing" if self.value is MISSING else f"is {self.value!r}"
        return f"{self.field} {found}: {self.rule}"


@attrs.frozen
class Declaration:
    """How one field is found and checked. ``flat`` is its name in the release's ``inference/config.json``."""

    section: str
    check: Callable[[object], object]
    rule: str
    default: object = REQUIRED
    flat: str | None = None
    flat_default: object = REQUIRED
    key: str | None = None


class Rejected(ValueError):
    """A value that breaks the rule of its declaration."""


def declare(
    check: Callable[[object], object],
    rule: str,
    *,
    section: str = "text",
    default: object = REQUIRED,
    flat: str | None = None,
    flat_default: object = REQUIRED,
    key: str | None = None,
) -> Any:
    """An attrs attribute that is read from ``section`` and must satisfy ``rule``."""
    declaration = Declaration(section, check, rule, default, flat, flat_default, key)
    return attrs.field(kw_only=True, metadata={_KEY: declaration})


def integer(low: int, high: int | None = None, **where: Any) -> Any:
    """An int (a bool is none) in ``[low, high]``."""
    rule = f"must be an integer of at least {low}" if high is None else f"must be an integer from {low} to {high}"

    def check(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
            raise Rejected
        return value

    return declare(check, rule, **where)


def optional_integer(rule: str, **where: Any) -> Any:
    """An int or null; a negative value means null."""

    def check(value: object) -> int | None:
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise Rejected
        return value if value >= 0 else None

    return declare(check, rule, **where)


def number(low: float, *, above: bool = False, **where: Any) -> Any:
    """A finite number of at least ``low`` (greater than it with ``above``)."""
    rule = f"must be a finite number {'greater than' if above else 'of at least'} {low:g}"

    def check(value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise Rejected
        if value < low or (above and value == low):
            raise Rejected
        return float(value)

    return declare(check, rule, **where)


def boolean(**where: Any) -> Any:
    def check(value: object) -> bool:
        if not isinstance(value, bool):
            raise Rejected
        return value

    return declare(check, "must be true or false", **where)


def fixed(expected: object, why: str, **where: Any) -> Any:
    """A field with the one value that this architecture allows. 0 and 0.0 are equal, 0 and false are not."""

    def check(value: object) -> object:
        if isinstance(value, bool) != isinstance(expected, bool) or value != expected:
            raise Rejected
        return expected

    where.setdefault("default", expected)
    return declare(check, f"must be {expected!r} ({why})", **where)


def one_of(choices: Sequence[str], **where: Any) -> Any:
    def check(value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise Rejected
        return value

    return declare(check, "must be one of " + ", ".join(repr(choice) for choice in choices), **where)


def integers(low: int, rule: str = "", **where: Any) -> Any:
    """A list of ints, each at least ``low``."""

    def check(value: object) -> tuple[int, ...]:
        if not isinstance(value, list | tuple):
            raise Rejected
        if any(isinstance(item, bool) or not isinstance(item, int) or item < low for item in value):
            raise Rejected
        return tuple(value)

    return declare(check, rule or f"must be a list of integers of at least {low}", **where)


def read_fields(
    cls: type, sections: Mapping[str, Mapping[str, Any]], *, flat: bool, problems: list[Problem], prefix: str = ""
) -> dict[str, object]:
    """The values of all declared fields of ``cls``; what is wrong goes to ``problems``.

    :param sections: Section name -> the mapping its fields are looked up in.
    :param flat: The configuration is an ``inference/config.json``: the flat names are accepted too.
    """
    values: dict[str, object] = {}
    for attribute in attrs.fields(cls):
        declaration = attribute.metadata.get(_KEY)
        if declaration is None:
            continue
        source = sections[declaration.section]
        name = declaration.key or attribute.name
        names = [name, *([declaration.flat] if flat and declaration.flat else [])]
        shown = next((candidate for candidate in names if candidate in source), names[-1])
        default = declaration.default
        if flat and declaration.flat_default is not REQUIRED:
            default = declaration.flat_default
        value = source.get(shown, default)
        label = f"{prefix}{shown}"
        if value is REQUIRED:
            problems.append(Problem(label, MISSING, declaration.rule, _remedy_for_missing(label, shown, source)))
            continue
        try:
            values[attribute.name] = declaration.check(value) if shown in source else value
        except (Rejected, OverflowError):  # an int beyond float's range overflows in the finite check
            problems.append(Problem(label, value, declaration.rule, f"correct {label} in the model's config.json"))
    return values


def _remedy_for_missing(label: str, name: str, source: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(source), n=1, cutoff=0.8)
    if near:
        return f"the configuration has {near[0]!r}: rename it to {name!r}"
    return f"add {label} to the model's config.json"


def raise_problems(problems: Sequence[Problem]) -> None:
    """Raise one :class:`ModelConfigError` that names every problem; do nothing when there is none."""
    if not problems:
        return
    details = {
        "problems": [
            {"field": p.field, "value": None if p.value is MISSING else p.value, "rule": p.rule} for p in problems
        ]
    }
    if len(problems) == 1:
        problem = problems[0]
        found = "is missing" if problem.value is MISSING else f"is {problem.value!r}"
        raise ModelConfigError(
            f"model configuration: {problem.field} {found}", reason=problem.rule, remedy=problem.remedy, details=details
        )
    listed = "\n".join(f"    {problem}" for problem in problems)
    remedies = "; ".join(dict.fromkeys(problem.remedy for problem in problems))
    raise ModelConfigError(
        f"model configuration: {len(problems)} problems\n{listed}",
        reason="each field above breaks the rule after its colon",
        remedy=remedies,
        details=details,
    )
