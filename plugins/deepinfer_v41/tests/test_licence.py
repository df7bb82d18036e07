"""The notices that the shipped checkpoint requires travel with the distribution."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_licence_files_cover_the_code_and_the_checkpoint() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["license"] == "Apache-2.0 AND PSF-2.0"
    shipped = sorted(str(path.relative_to(ROOT)) for glob in project["license-files"] for path in ROOT.glob(glob))
    assert shipped == ["LICENSE", "LICENSES/PSF-2.0.txt", "NOTICE"]


def test_notice_names_the_copyright_the_licence_and_what_derives_from_it() -> None:
    notice = (ROOT / "NOTICE").read_text("utf-8")
    for part in ("Copyright (c) 2001-2024 Python Software Foundation", "LICENSES/PSF-2.0.txt", "v41-tiny", "tokenizer"):
        assert part in notice
    assert (
        (ROOT / "LICENSES" / "PSF-2.0.txt")
        .read_text("utf-8")
        .startswith("PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2")
    )
