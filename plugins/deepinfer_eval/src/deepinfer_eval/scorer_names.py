"""Which scorer a person named: for the run, or in the line of an item."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from deepinfer_core.errors import CommandUsageError
from deepinfer_core.parameters.named_parts import NamedPart, named_part


def scorer_of(value: object) -> NamedPart | None:
    """``NAME`` or ``{"name": NAME, "params": {...}}``. Raises InvalidParameter for anything else."""
    return None if value is None else named_part("scorer", value)


def scorer_of_options(name: str | None, params: str | None) -> NamedPart | None:
    """That of ``--scorer`` and ``--scorer-params``; None: it was not given."""
    if name is None:
        if params is not None:
            raise CommandUsageError("--scorer-params is for a scorer", remedy="give --scorer too, or leave it out")
        return None
    try:
        found = {} if params is None else json.loads(params)
    except (ValueError, RecursionError) as err:
        raise CommandUsageError(
            "--scorer-params is not JSON", reason=str(err), remedy="""write an object, such as '{"choices": 4}'"""
        ) from None
    return scorer_of({"name": name, "params": found})


def as_record(scorer: NamedPart | None) -> dict[str, Any] | None:
    """The same as JSON-serialisable data."""
    return None if scorer is None else {"name": scorer.name, "params": dict(scorer.params)}


def title(record: Mapping[str, Any]) -> str:
    """A scorer's record in words: ``multiple_choice {"choices": 4}``."""
    return f"{record['name']} {json.dumps(record['params'])}" if record["params"] else str(record["name"])
