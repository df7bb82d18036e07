"""The page's list of what is carried to a machine without a package index is what our distributions need there."""

import re
from importlib.metadata import requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PAGE = Path(__file__).parents[3] / "docs/how-to/cuda.md"
OURS = re.compile(r"for folder in (.*); do")
CARRIED = re.compile(r"pip download .*?--dest \S+ \\\n(.*?)\n[A-Z]", re.DOTALL)
TOOLS = ("pytest", "pytest-timeout")
THERE = ("torch", "numpy")
UNUSED = ("huggingface-hub",)
"""What tokenizers asks for to download files, and imports only then."""


def closure(names, without=()):
    """Distributions that ``names`` require on Linux with Python 3.12, themselves included."""
    found, waiting = set(), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in without:
            continue
        found.add(name)
        for line in requires(name) or ():
            needed = Requirement(line)
            where = {"extra": "", "python_version": "3.12", "python_full_version": "3.12.0"}
            if needed.marker is None or needed.marker.evaluate(where):
                waiting.append(needed.name)
    return found


def test_every_requirement_is_carried_or_there():
    text = PAGE.read_text("utf-8")
    built = OURS.search(text).group(1).replace("plugins/deepinfer_{", "{").replace("deepinfer_core", "core")
    ours = {f"deepinfer-{name}" for name in re.findall(r"\w+", built)}
    carried = {re.split("=", word)[0] for word in CARRIED.search(text).group(1).replace("\\", "").split()}
    needed = closure([*ours, *TOOLS], without=closure(THERE) | set(UNUSED))
    assert carried == needed - ours
    assert {name for name in needed if name.startswith("deepinfer-")} == ours
