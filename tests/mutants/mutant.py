"""What a mutant is: a plugin with a fault that a person could make, and the test of the kit that finds it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from attrs import field, frozen


@frozen(kw_only=True)
class Mutant:
    """One fault. A mutant of a backend is ``cpu`` with one op replaced (``op``, ``make``), with something else changed
    (``change``), or a plugin module of its own (``module``); a mutant of another kind patches what is installed
    (``apply``)."""

    name: str
    caught_by: str
    """File of the kit that finds it: ``backend/test_indexer.py``."""
    level: str = "core"
    test: str = ""
    """Expression for ``-k``: only these tests of the file run."""
    op: str = ""
    make: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """The op -> the op with the fault."""
    change: Callable[[dict[str, Any]], None] | None = None
    """Changes the arguments of ``build_backend`` in place: ``ops``, ``capabilities``, ``close``, ..."""
    module: str = ""
    """Source of the plugin module. It may call ``mutant_backends.create(name, device, config)``."""
    claims: tuple[str, ...] = field(default=())
    """Claims beside those of ``cpu``."""
    arch: str = "cpu"
    apply: Callable[[], AbstractContextManager[object]] | None = None
    """In force while the kit runs."""
    kind: str = "backend"
    options: tuple[str, ...] = ()
    """Further options of the kit: ``("--on", "toy")``."""
    subject: str = ""
    """The plugin that ``apply`` spoils, for kinds other than ``backend``."""
