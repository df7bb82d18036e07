"""Grammars in EBNF: rules that cannot end are found here, since the compiler takes them and then allows nothing.

The form is that of the compiler: ``root ::= "a" (item | [^0-9]+)* item{2,3}``, one rule a line or several,
``#`` starts a
comment. Only the shape is read; what is malformed is left for the compiler, whose messages say where.
"""

from __future__ import annotations

import re

from deepinfer_core.errors import InvalidParameter

MAX_BYTES = 262_144
MAX_DEPTH = 128
_TOKEN = re.compile(
    r"(?P<skip>\s+|#[^\n]*)|(?P<rule>[A-Za-z_][\w.-]*)(?=\s*::=)|(?P<name>[A-Za-z_][\w.-]*)|(?P<is>::=)"
    r'|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<set>\[(?:[^\]\\\n]|\\.)*\])|(?P<open>\()|(?P<close>\))|(?P<or>\|)'
    r"|(?P<none>[*?])|(?P<plus>\+)|\{(?P<least>\d*)(?:,\d*)?\}"
)
_HALF = re.compile(r"\\(?:(?P<half>(?:u|U0000)[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
Rules = dict[str, list[list[str]]]


def check(text: str) -> None:
    """Refuse what is too large, too deep or no character, and rules that no text can complete.

    Raises InvalidParameter.
    """
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidParameter(f"the grammar has more than {MAX_BYTES:,} bytes", remedy="write a smaller one")
    for escape in _HALF.finditer(text):
        if escape["half"]:
            raise InvalidParameter(
                f"the grammar has {escape[0]}, half of a surrogate pair, at position {escape.start()}",
                reason="it is no character, and no UTF-8 text holds it",
                remedy="write the character itself, or its code point as \\UXXXXXXXX",
            )
    rules = _rules(text)
    if rules is None:
        return
    ending: set[str] = set()
    while True:
        more = {
            name
            for name, branches in rules.items()
            if name not in ending and any(all(part in ending or part not in rules for part in b) for b in branches)
        }
        if not more:
            break
        ending |= more
    dead = [name for name in rules if name not in ending and not name.startswith("(")]
    if dead:
        raise InvalidParameter(
            f"the grammar has a circular reference: rule {dead[0]!r} needs itself to end",
            reason="no text completes it",
            remedy="give the rule a branch without itself",
            details={"rules": dead},
        )


def _rules(text: str) -> Rules | None:
    """Names (groups too) -> branches -> names that each branch needs; None where the shape is not understood."""
    rules: Rules = {}
    stack: list[str] = []
    at, groups = 0, 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            return None
        kind, at = token.lastgroup, token.end()
        if kind == "rule":
            stack = [token.group()]
            if stack[0] in rules:
                return None
            rules[stack[0]] = [[]]
        elif kind in ("skip", "is"):
            continue
        elif not stack:
            return None
        elif kind == "open":
            groups += 1
            name = f"({groups}"
            rules[stack[-1]][-1].append(name)
            stack.append(name)
            rules[name] = [[]]
            if len(stack) > MAX_DEPTH:
                raise InvalidParameter(
                    f"the grammar has more than {MAX_DEPTH} nested groups", remedy="name the inner ones as rules"
                )
        elif kind == "close":
            if len(stack) < 2:
                return None
            stack.pop()
        elif kind == "or":
            rules[stack[-1]].append([])
        elif kind == "none" or (kind == "least" and int(token["least"] or 0) == 0):
            branch = rules[stack[-1]][-1]
            if not branch:
                return None
            branch.pop()
        elif kind in ("plus", "least"):
            continue
        else:
            rules[stack[-1]][-1].append(token.group() if kind == "name" else '"')
    return rules if len(stack) == 1 else None
