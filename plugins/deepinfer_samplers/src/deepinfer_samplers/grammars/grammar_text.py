"""Schemas and expressions as grammars.

The library turns a lowered schema into a grammar; where a pattern stands in it, the rule of our own expression goes in.
"""

from __future__ import annotations

import json
import re
from typing import Any

from deepinfer_core.errors import VendorImportError
from deepinfer_samplers.grammars import regex
from deepinfer_samplers.grammars.json_schema import Lowered
from deepinfer_samplers.grammars.regex_rules import rule

MAX_WHITE_SPACE = 2
"""White space characters between two parts of a JSON text: a model that likes spaces still comes to an end."""
_HELD = re.compile(r'Regex\("\^Q(?P<index>\d+)Q\$", json_string=true\)')
_LEFT = re.compile(r"^\w+ ::= .*Regex\(\"", re.MULTILINE)  # the quote of one within a string is escaped
_ESCAPE = re.compile(r"\\(?:x(?P<byte>[0-9a-f]{2})|.)")


def regex_grammar(pattern: str) -> str:
    """The grammar of the texts that ``pattern`` matches as a whole."""
    return f"root ::= {rule(regex.whole(regex.parse(pattern)))}\n"


def schema_grammar(library: Any, lowered: Lowered) -> str:
    """The grammar of the JSON texts that a lowered schema allows. ``library`` is the module ``xgrammar``."""
    text = str(
        library.Grammar.from_json_schema(
            json.dumps(lowered.schema, ensure_ascii=False),
            any_whitespace=True,
            strict_mode=True,
            max_whitespace_cnt=MAX_WHITE_SPACE,
        )
    )
    # It writes 'ß' as '\xdf' and reads '\xdfe' as one character: of both forms only '\uXXXX' has a fixed length.
    text = _ESCAPE.sub(lambda found: f"\\u00{found['byte']}" if found["byte"] else found[0], text)
    used: set[int] = set()

    def expression(found: re.Match[str]) -> str:
        used.add(int(found["index"]))
        return f"held_{found['index']}"

    text = _HELD.sub(expression, text)
    if _LEFT.search(text) or used != set(range(len(lowered.expressions))):
        raise VendorImportError(  # never wrong silently: the text of a grammar is the library's own form
            "this xgrammar writes the patterns of a schema in an unknown form", remedy="pip install xgrammar==0.2.8"
        )
    return text + "".join(f"held_{index} ::= {rule(node)}\n" for index, node in enumerate(lowered.expressions))
