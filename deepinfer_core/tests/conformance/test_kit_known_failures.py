"""``conformance.toml``: what it may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from deepinfer_core.conformance.known_failures import (
    KnownFailure,
    KnownFailuresError,
    read_known_failures,
    unmatched,
)

ENTRY = '[[known_failure]]\ntest = "backend/test_a.py::test_b"\nreason = "r"\nissue = "i"\n'


def test_no_file_and_none_named_is_no_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_known_failures(None) == []
    (tmp_path / "conformance.toml").write_text(ENTRY, encoding="utf-8")
    assert read_known_failures(None) == [KnownFailure("backend/test_a.py::test_b", "r", "i")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = [", "{file} is not TOML: Invalid value (at end of document)"),
        ("other = 1\n", "{file} may hold only tables [[known_failure]] with test, reason, issue"),
        ("known_failure = 3\n", "{file} may hold only tables [[known_failure]] with test, reason, issue"),
        ("known_failure = [1]\n", "{file}: entry 1 of known_failure is no table"),
        (
            ENTRY + "strict = false\n",
            "{file}: entry 1 of known_failure has an unknown key 'strict'; keys are test, reason, issue",
        ),
        (ENTRY.replace('"i"', '" "'), "{file}: entry 1 of known_failure needs issue, a text"),
        (ENTRY + ENTRY, "{file}: several entries for backend/test_a.py::test_b"),
    ],
)
def test_malformed_file_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(KnownFailuresError) as caught:
        read_known_failures(file)
    assert str(caught.value) == message.format(file=file)


def test_missing_named_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KnownFailuresError) as caught:
        read_known_failures(tmp_path / "no.toml")
    assert str(caught.value) == f"{tmp_path / 'no.toml'}: No such file or directory"


def test_entry_without_case_stands_for_all_cases() -> None:
    whole, one = KnownFailure("a.py::t", "r", "i"), KnownFailure("a.py::u[1]", "r", "i")
    assert whole.matches("a.py::t[3]")
    assert whole.matches("a.py::t")
    assert not whole.matches("a.py::t2")
    assert not one.matches("a.py::u[2]")
    assert unmatched([whole, one], ["a.py::t[3]", "a.py::u[2]"]) == ["a.py::u[1]"]
