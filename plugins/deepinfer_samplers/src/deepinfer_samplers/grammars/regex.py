"""The dialect of regular expressions: parsed here, so that nothing is accepted that the compiler reads differently.

An expression matches the **whole** output. ``^`` and ``$`` may stand at the ends of an alternative and then change
nothing: ``^a|b$`` matches ``a`` and ``b`` and nothing else. Characters are code points. ``.`` is every character but
the line feed; ``\\d``, ``\\w`` and ``\\s`` are ASCII, as with ``re.ASCII``, and ``\\D``, ``\\W``, ``\\S`` everything
else. What has no meaning here (look-around, back-references, word boundaries, flags, possessive or atomic parts) is
refused by name.
"""

from __future__ import annotations

from attrs import frozen

from deepinfer_core.errors import InvalidParameter
from deepinfer_samplers.grammars import charset
from deepinfer_samplers.grammars.charset import Ranges

MAX_LENGTH = 16_384
MAX_DEPTH = 64
MAX_REPEAT = 100_000
MAX_EXPANDED = 1_000_000
"""Characters that an expression may demand, nested repetitions multiplied: what compiles in seconds."""


@frozen
class Chars:
    """One character of a set."""

    ranges: Ranges


@frozen
class Sequence:
    parts: tuple[Node, ...]


@frozen
class Choice:
    branches: tuple[Node, ...]


@frozen
class Repeat:
    part: Node
    least: int
    most: int | None


Node = Chars | Sequence | Choice | Repeat
EMPTY = Sequence(())


@frozen
class Branch:
    """One top-level alternative, and whether it is tied to the start and to the end of the text."""

    node: Node
    at_start: bool
    at_end: bool


@frozen
class Reading:
    """How a dialect reads the parts whose meaning differs between implementations.

    ``negated`` holds the sets that ``\\D \\W \\S`` and a negated class leave out.
    """

    dot: Ranges
    negated_digit: Ranges
    negated_word: Ranges
    negated_space: Ranges


OUTPUT = Reading(charset.complement(charset.chars("\n")), charset.DIGIT, charset.WORD, charset.SPACE)
# Schemas are validated by implementations of two languages (ECMA-262, Python): an output suits both.
SCHEMA = Reading(
    charset.complement(charset.chars("\n\r\u2028\u2029")), charset.ANY_DIGIT, charset.ANY_WORD, charset.ANY_SPACE
)

_GROUPS = {
    "?=": "look-ahead", "?!": "look-ahead", "?<=": "look-behind", "?<!": "look-behind", "?>": "an atomic group",
    "?#": "a comment", "?P=": "a back-reference", "?P>": "recursion", "?(": "a condition", "?&": "recursion",
    "?R": "recursion",
}  # fmt: skip
_ESCAPES = {"b": "a word boundary", "B": "a word boundary", "k": "a back-reference", "G": "the anchor \\G",
            "p": "a Unicode property", "P": "a Unicode property", "X": "a grapheme", "R": "a line break escape",
            "K": "the escape \\K", "N": "a named character"}  # fmt: skip
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a", "0": "\0"}


def refused(pattern: str, at: int, name: str, *, remedy: str = "") -> InvalidParameter:
    """The error for a construct that has no meaning here."""
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
    return InvalidParameter(
        f"regex {shown!r} has {name} at position {at}",
        reason="an expression must be regular and match the whole text; this has no form as a grammar",
        remedy=remedy or "write the expression without it",
        details={"construct": name, "position": at},
    )


def malformed(pattern: str, at: int, problem: str) -> InvalidParameter:
    """The error for an expression that is none."""
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
    return InvalidParameter(
        f"regex {shown!r}: {problem} at position {at}", remedy="repair the expression", details={"position": at}
    )


class _Parser:
    def __init__(self, pattern: str, reading: Reading) -> None:
        self.pattern, self.reading, self.at = pattern, reading, 0

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.at)

    def take(self) -> str:
        if self.at >= len(self.pattern):
            raise malformed(self.pattern, self.at, "the expression ends too early")
        self.at += 1
        return self.pattern[self.at - 1]

    def branches(self) -> tuple[Branch, ...]:
        out = []
        while True:
            start = self.anchors(("^", "\\A"))
            node = self.sequence(0)
            end = self.anchors(("$", "\\Z", "\\z"))
            out.append(Branch(node, start, end))
            if self.peek("|"):
                self.at += 1
            elif self.at < len(self.pattern):
                if self.peek(")"):
                    raise malformed(self.pattern, self.at, "unmatched ')'")
                raise refused(self.pattern, self.at, "an anchor inside the expression")
            else:
                return tuple(out)

    def anchors(self, names: tuple[str, ...]) -> bool:
        found = False
        while name := next((n for n in names if self.peek(n)), ""):
            self.at += len(name)
            found = True
        return found

    def choice(self, depth: int) -> Node:
        if depth > MAX_DEPTH:
            raise refused(self.pattern, self.at, f"more than {MAX_DEPTH} nested groups")
        branches = [self.sequence(depth)]
        while self.peek("|"):
            self.at += 1
            branches.append(self.sequence(depth))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def sequence(self, depth: int) -> Node:
        parts: list[Node] = []
        while self.at < len(self.pattern) and not any(self.peek(stop) for stop in ("|", ")")):
            if any(self.peek(anchor) for anchor in ("^", "$", "\\A", "\\Z", "\\z")):
                if depth:
                    raise refused(self.pattern, self.at, "an anchor inside the expression")
                break
            parts.append(self.repeated(self.atom(depth)))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def atom(self, depth: int) -> Node:
        at, char = self.at, self.take()
        if char == "(":
            self.group_kind(at)
            node = self.choice(depth + 1)
            if not self.peek(")"):
                raise malformed(self.pattern, at, "a parenthesis that is not closed")
            self.at += 1
            return node
        if char == "[":
            return Chars(self.char_class(at))
        if char == ".":
            return Chars(self.reading.dot)
        if char == "\\":
            return Chars(self.escape(at, in_class=False)[0])
        if char in "*+?" or (char == "{" and self.bounds(at) is not None):
            raise malformed(self.pattern, at, f"nothing to repeat before {char!r}")
        return Chars(self.literal(at, char))

    def literal(self, at: int, char: str) -> Ranges:
        if 0xD800 <= ord(char) <= 0xDFFF:
            raise malformed(self.pattern, at, "half of a surrogate pair")
        return charset.chars(char)

    def group_kind(self, at: int) -> None:
        if not self.peek("?"):
            return
        for opening in ("?:", "?P<", "?<"):
            if self.peek(opening) and not (opening == "?<" and (self.peek("?<=") or self.peek("?<!"))):
                self.at += len(opening)
                if opening != "?:":
                    end = self.pattern.find(">", self.at)
                    if end < 0 or not self.pattern[self.at : end].isidentifier():
                        raise malformed(self.pattern, at, "a group without a proper name")
                    self.at = end + 1
                return
        name = next((name for opening, name in _GROUPS.items() if self.peek(opening)), "inline flags")
        raise refused(self.pattern, at, name)

    def repeated(self, node: Node) -> Node:
        at = self.at
        bounds = self.bounds(at)
        if bounds is None:
            return node
        least, most, self.at = bounds
        if most is not None and least > most:
            raise malformed(self.pattern, at, f"a repetition of at least {least} and at most {most}")
        if max(least, most or 0) > MAX_REPEAT:
            raise refused(self.pattern, at, f"a repetition above {MAX_REPEAT}")
        if self.peek("?"):  # a lazy repetition matches the same texts
            self.at += 1
        elif self.peek("+"):
            raise refused(self.pattern, at, "a possessive repetition")
        if self.bounds(self.at) is not None:
            raise malformed(self.pattern, self.at, "a repetition of a repetition")
        return Repeat(node, least, most)

    def bounds(self, at: int) -> tuple[int, int | None, int] | None:
        """Least, most and where the text goes on, if a repetition stands at ``at``."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        char = self.pattern[at : at + 1]
        if char in simple:
            return *simple[char], at + 1
        if char != "{":
            return None
        end = self.pattern.find("}", at)
        body = self.pattern[at + 1 : end] if end > 0 else ""
        first, comma, last = body.partition(",")
        numbers = [n for n in (first, last) if n]
        if not numbers or not all(n.isascii() and n.isdigit() and len(n) < 10 for n in numbers):
            raise malformed(self.pattern, at, "a '{' that opens no repetition (write '\\{' for the character)")
        least = int(first or 0)
        return least, (int(last) if last else None) if comma else least, end + 1

    def escape(self, at: int, *, in_class: bool) -> tuple[Ranges, Ranges]:
        """The set of an escape, and the set that a negated class leaves out for it."""
        char = self.take()
        reading = self.reading
        named = {
            "d": (charset.DIGIT, reading.negated_digit),
            "w": (charset.WORD, reading.negated_word),
            "s": (charset.SPACE, reading.negated_space),
        }
        if char.lower() in named:
            narrow, wide = named[char.lower()]
            return (narrow, wide) if char.islower() else (charset.complement(wide), charset.complement(narrow))
        if char == "b" and in_class:
            one = charset.chars("\b")
        elif char in "xuU":
            one = charset.chars(self.code_point(at, {"x": 2, "u": 4, "U": 8}[char]))
        elif char == "0" and self.pattern[self.at : self.at + 1].isdigit():
            raise refused(self.pattern, at, "an octal escape")
        elif char in _CONTROLS:
            one = charset.chars(_CONTROLS[char])
        elif char.isdigit():
            raise refused(self.pattern, at, "a back-reference")
        elif char in _ESCAPES:
            raise refused(self.pattern, at, _ESCAPES[char])
        elif char.isalpha():
            raise malformed(self.pattern, at, f"the unknown escape '\\{char}'")
        else:
            one = self.literal(at, char)
        return one, one

    def code_point(self, at: int, digits: int) -> str:
        text = self.pattern[self.at : self.at + digits]
        if len(text) != digits or not all(c in "0123456789abcdefABCDEF" for c in text):
            raise malformed(self.pattern, at, f"an escape that needs {digits} hexadecimal digits")
        self.at += digits
        code = int(text, 16)
        if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
            raise malformed(self.pattern, at, "an escape of no character (half of a surrogate pair, or out of range)")
        return chr(code)

    def char_class(self, at: int) -> Ranges:
        negated = self.peek("^")
        self.at += negated
        narrow: list[tuple[int, int]] = []
        wide: list[tuple[int, int]] = []
        first = True
        while first or not self.peek("]"):
            if self.at >= len(self.pattern):
                raise malformed(self.pattern, at, "a '[' that is not closed")
            if first and self.peek("]"):
                raise malformed(self.pattern, at, "an empty character class (write '\\]' for the character)")
            if self.peek("[:"):
                raise refused(self.pattern, self.at, "a POSIX class", remedy="write its characters out")
            first = False
            low = self.class_item()
            if self.peek("-") and not self.peek("-]"):
                dash = self.at
                self.at += 1
                high = self.class_item()
                if any(len(s) != 1 or s[0][0] != s[0][1] for s in (low[0], high[0])):
                    raise malformed(self.pattern, dash, "a range between sets")
                if low[0][0][0] > high[0][0][0]:
                    raise malformed(self.pattern, dash, "a range that runs backwards")
                low = (((low[0][0][0], high[0][0][0]),),) * 2
            narrow.extend(low[0])
            wide.extend(low[1])
        self.at += 1
        return charset.complement(charset.merged(wide)) if negated else charset.merged(narrow)

    def class_item(self) -> tuple[Ranges, Ranges]:
        at, char = self.at, self.take()
        if char == "\\":
            return self.escape(at, in_class=True)
        one = self.literal(at, char)
        return one, one


def parse(pattern: str, reading: Reading = OUTPUT) -> tuple[Branch, ...]:
    """The alternatives of ``pattern``. Raises InvalidParameter for what is malformed or has no meaning here."""
    if len(pattern) > MAX_LENGTH:
        raise InvalidParameter(
            f"a regex of {len(pattern)} characters, allowed are {MAX_LENGTH}",
            remedy="write a shorter one, or a grammar",
        )
    branches = _Parser(pattern, reading).branches()
    if sum(_size(branch.node) for branch in branches) > MAX_EXPANDED:
        raise refused(pattern, 0, f"repetitions that make more than {MAX_EXPANDED} characters")
    return branches


def whole(branches: tuple[Branch, ...]) -> Node:
    """The texts that the expression matches from start to end."""
    nodes = tuple(branch.node for branch in branches)
    return nodes[0] if len(nodes) == 1 else Choice(nodes)


def anywhere(branches: tuple[Branch, ...], filler: Ranges) -> Node:
    """The texts of ``filler`` characters that hold a match: anchors tie it to an end, as JSON schemas mean them."""
    rest = Repeat(Chars(filler), 0, None)
    nodes = []
    for branch in branches:
        parts = [*(() if branch.at_start else (rest,)), branch.node, *(() if branch.at_end else (rest,))]
        nodes.append(parts[0] if len(parts) == 1 else Sequence(tuple(parts)))
    return nodes[0] if len(nodes) == 1 else Choice(tuple(nodes))


def lengths(node: Node) -> tuple[int, int | None]:
    """Least and most characters of a match; None: no bound."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Repeat):
        least, most = lengths(node.part)
        unbounded = node.most is None or most is None
        return least * node.least, 0 if most == 0 else None if unbounded else (most or 0) * (node.most or 0)
    inner = [lengths(part) for part in (node.parts if isinstance(node, Sequence) else node.branches)]
    tops = [most for _, most in inner if most is not None]
    bounded = len(tops) == len(inner)
    if isinstance(node, Sequence):
        return sum(least for least, _ in inner), sum(tops) if bounded else None
    return min(least for least, _ in inner), max(tops) if bounded else None


def _size(node: Node) -> int:
    if isinstance(node, Chars):
        return 1
    if isinstance(node, Repeat):
        return _size(node.part) * max(1, node.least, node.most or 0)
    return sum(_size(part) for part in (node.parts if isinstance(node, Sequence) else node.branches))
