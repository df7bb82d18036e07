"""Writes the reference pages that follow from the code; ``docs/generators`` has a module for each.

``python docs/generate_reference.py`` writes them; with ``--check`` it writes nothing and exits 1 if a page is out of
date. The contracts' pages have their own generator, ``contracts/generate.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path

from generators import PAGES

FOLDER = Path(__file__).parent / "reference"


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: python docs/generate_reference.py [--check]\n")
        return 2
    stale = []
    for name, page in PAGES.items():
        path, text = FOLDER / name, page()
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not arguments:
            FOLDER.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    for name in stale:
        sys.stdout.write(f"docs/reference/{name}: {'out of date' if arguments else 'written'}\n")
    if stale and arguments:
        sys.stdout.write("run: python docs/generate_reference.py\n")
    return 1 if stale and arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
