"""``conformance.toml``: tests that are known to fail, each with a reason and an issue.

They run as strict xfail, so one that passes is a failure, and they are in the report::

    [[known_failure]]
    test = "backend/test_indexer.py::test_topk_ties_take_lower_index[rows7]"
    reason = "the vendor's kernel orders ties by warp"
    issue = "https://example.org/acme/issues/12"

``test`` without ``[...]`` stands for all cases of the test, each of which then has to fail.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from attrs import frozen

DEFAULT_FILE = "conformance.toml"
_KEYS = ("test", "reason", "issue")


class KnownFailuresError(Exception):
    """The file is malformed, or names a test that does not exist."""


@frozen
class KnownFailure:
    """One entry."""

    test: str
    reason: str
    issue: str

    def matches(self, kit_id: str) -> bool:
        """Whether this entry is about the test, or about all its cases."""
        return kit_id == self.test or kit_id.partition("[")[0] == self.test


def read_known_failures(path: Path | None) -> list[KnownFailure]:
    """The entries of the file; of ``./conformance.toml``, if that is there and no file is named.

    :raises KnownFailuresError: it cannot be read, or is no list of complete entries.
    """
    if path is None:
        path = Path(DEFAULT_FILE)
        if not path.is_file():
            return []
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise KnownFailuresError(f"{path}: {exc.strerror or exc}") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise KnownFailuresError(f"{path} is not TOML: {exc}") from exc
    entries = data.pop("known_failure", [])
    if data or not isinstance(entries, list):
        raise KnownFailuresError(f"{path} may hold only tables [[known_failure]] with {', '.join(_KEYS)}")
    known = [_entry(path, place, raw) for place, raw in enumerate(entries, 1)]
    tests = [entry.test for entry in known]
    twice = sorted({test for test in tests if tests.count(test) > 1})
    if twice:
        raise KnownFailuresError(f"{path}: several entries for {', '.join(twice)}")
    return known


def unmatched(known: Iterable[KnownFailure], kit_ids: Iterable[str]) -> list[str]:
    """Tests named by entries that match none of ``kit_ids``."""
    ids = list(kit_ids)
    return [entry.test for entry in known if not any(entry.matches(kit_id) for kit_id in ids)]


def _entry(path: Path, place: int, raw: object) -> KnownFailure:
    where = f"{path}: entry {place} of known_failure"
    if not isinstance(raw, dict):
        raise KnownFailuresError(f"{where} is no table")
    for key in raw:
        if key not in _KEYS:
            raise KnownFailuresError(f"{where} has an unknown key {key!r}; keys are {', '.join(_KEYS)}")
    for key in _KEYS:
        if not isinstance(raw.get(key), str) or not raw[key].strip():
            raise KnownFailuresError(f"{where} needs {key}, a text")
    return KnownFailure(raw["test"].strip(), raw["reason"].strip(), raw["issue"].strip())
