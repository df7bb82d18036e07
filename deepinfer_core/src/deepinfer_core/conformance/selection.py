"""Which tests run: those of the level, those of what is claimed; and what a person left out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict, field, frozen

from deepinfer_core.conformance.kinds import COMMON, DEFAULT_LEVEL, KINDS, KIT, LEVELS
from deepinfer_core.conformance.subject import Subject


@frozen
class TestFacts:
    """What the report says of a test apart from its outcome."""

    __test__ = False

    test: str
    """``backend/test_norm.py::test_rms[rows7]``"""
    area: str
    level: str
    needs: tuple[str, ...] = ()

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "needs": list(self.needs)}


@frozen
class Collected:
    """All tests of the kind, before and after selection. The workers of xdist pass it on as data."""

    tests: list[dict[str, Any]] = field(factory=list)
    """Every test of the kind, of all levels."""
    left_out: list[str] = field(factory=list)
    """Ids of tests of the level that were deselected by options or by other plugins."""
    partial: list[str] = field(factory=list)
    """Why this is no whole run, in words."""
    stale: list[str] = field(factory=list)
    """Tests that ``conformance.toml`` names and that do not exist, where a worker of xdist found that out."""


def kind_of(path: Path) -> str | None:
    """The kind whose folder ``path`` is in, :data:`COMMON`, or None if it is in no folder of tests."""
    try:
        first = path.resolve().relative_to(KIT).parts[:1]
    except ValueError:
        return None
    return first[0] if first and first[0] in (COMMON, *KINDS) else None


def kit_id(item: pytest.Item) -> str:
    """The test's id without whatever folder the kit is installed in."""
    relative = item.path.resolve().relative_to(KIT).as_posix()
    return "::".join([relative, *item.nodeid.split("::")[1:]])


def facts_of(item: pytest.Item) -> TestFacts:
    """Level, needs and area of a test.

    :raises pytest.UsageError: the markers are wrong.
    """
    identity = kit_id(item)
    marker = item.get_closest_marker("level")
    level = marker.args[0] if marker and marker.args else DEFAULT_LEVEL
    if level not in LEVELS:
        raise pytest.UsageError(f"{identity}: unknown level {level!r}; levels are {', '.join(LEVELS)}")
    needs = tuple(dict.fromkeys(need for mark in item.iter_markers("needs") for need in mark.args))
    area = item.path.stem.removeprefix("test_").replace("_", " ")
    return TestFacts(identity, area, level, needs)


def within_level(facts: TestFacts, level: str) -> bool:
    return LEVELS.index(facts.level) <= LEVELS.index(level)


def skip_unclaimed(item: pytest.Item, facts: TestFacts, subject: Subject) -> None:
    """Mark a test of something that the plugin does not claim as skipped."""
    missing = [need for need in facts.needs if subject.lacks(need)]
    if missing:
        item.add_marker(pytest.mark.skip(reason=f"not claimed: {', '.join(missing)}"))


def partial_reasons(kind: str, args: Sequence[str], seen_files: Iterable[Path], left_out: int) -> list[str]:
    """Why a run is not of the whole kit: parts named on the command line, files ignored, tests deselected."""
    reasons = []
    parts = [part for part in args if _is_part(part, kind)]
    if parts:
        reasons.append(f"only parts were asked for: {', '.join(_short(part) for part in parts)}")
    seen = {path.resolve() for path in seen_files}
    files = [path for folder in (COMMON, kind) for path in sorted((KIT / folder).glob("test_*.py"))]
    absent = [path.stem for path in files if path not in seen]
    if absent and not parts:
        reasons.append(f"files were not collected: {', '.join(absent)}")
    if left_out:
        reasons.append(f"{left_out} test{'' if left_out == 1 else 's'} deselected")
    return reasons


def _is_part(argument: str, kind: str) -> bool:
    target = argument.rstrip("/")
    if "::" in target:
        return True
    path = Path(target)
    if path.exists():
        return path.resolve() not in (KIT, KIT / kind) and KIT in path.resolve().parents
    package = "deepinfer_core.conformance"
    return target.startswith(package) and target not in (package, f"{package}.{kind}")


def _short(argument: str) -> str:
    """An argument without the folders of this machine."""
    return argument.replace(str(KIT), "").lstrip("/").removeprefix("deepinfer_core.conformance.")
