"""The grammar engine of the core's tests, without the one kind that it only knows in part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tiny_grammar import TinyEngine


class RegexEngine(TinyEngine):
    """Regular expressions, and EBNF of literal alternatives."""

    def compile(self, so_args: Mapping[str, Any]) -> Any:
        if so_args["schema_type"] == "json_object":
            raise RuntimeError("this engine compiles no json_object")
        return super().compile(so_args)
