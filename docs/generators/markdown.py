"""What the generated pages share: the notice at their top, and how values and texts of the code look in Markdown."""

from __future__ import annotations

import re

NOTICE = "<!-- Written by docs/generate_reference.py from the code. Change the code, then run it again. -->\n"

# Docstrings cite the design documents, which readers of the pages do not have.
_CITATION = re.compile(r"\s*\(``spec/[^()]*\)")
_ORDER = re.compile(r"``spec/sampling\.md`` 2\.2")
_ROLE = re.compile(r":(?:class|func|attr|meth|mod):`~?([\w.]+)`")


def prose(text: str) -> str:
    """A docstring's text in Markdown."""
    text = _ORDER.sub("[the order](../explanation/sampling.md#the-order)", text)
    return _ROLE.sub(r"`\1`", _CITATION.sub("", text)).replace("``", "`")


def cell(text: str) -> str:
    """The text as a cell of a table: on one line."""
    return prose(" ".join(text.split())).replace("|", "\\|")


def value(given: object) -> str:
    """A default as a reader writes it."""
    if given is None:
        return "not set"
    if isinstance(given, bool):
        return f"`{str(given).lower()}`"
    if isinstance(given, tuple | dict):
        return f"`{', '.join(map(str, given))}`" if given else "none"
    return f"`{given}`"
