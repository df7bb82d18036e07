"""The page on what structured output enforces: its tables are those that the code decides by."""

from __future__ import annotations

from deepinfer_samplers.grammars import ebnf, json_schema, regex, structural_tag
from deepinfer_samplers.grammars.grammar_text import MAX_WHITE_SPACE
from deepinfer_samplers.grammars.schema_formats import FORMATS
from deepinfer_samplers.grammars.schema_keywords import ANNOTATIONS, ENFORCED, REFUSED
from generators.markdown import NOTICE

INSTALL = """\
## Install

The grammar engine `xgrammar` is part of `deepinfer-samplers`; the library that it compiles with is not installed by
default, because pip would bring triton (1 GB) and transformers with it. Neither is used: masks are applied by the
sampler, and the vocabulary comes from the model's own tokenizer. In a clone this leaves both out, and takes about
22 MB:

<!-- not run: the checks run in an installed environment -->
```bash
.venv/bin/pip install --no-deps -r requirements-xgrammar.txt
```

`uv pip install --no-deps -r requirements-xgrammar.txt` does the same. Elsewhere, uv takes an override file; plain
`pip install 'deepinfer-samplers[xgrammar]'` works too and brings everything:

<!-- not run: the checks run in an installed environment -->
```bash
printf '%s\\n' "triton ; sys_platform == 'never'" "transformers ; sys_platform == 'never'" > without.txt
uv pip install --override without.txt 'deepinfer-samplers[xgrammar]'
```

Without the library everything else works, and a request for structured output gets an error that says the above.
Versions from 0.2.8 up to, not including, 0.3 are accepted: what a schema means to the library differs between
versions, and nothing would tell.
"""

SCHEMAS = f"""\
## JSON schemas

Every answer that ends by itself satisfies the schema, as validators read it. The library drops many keywords
silently, so a schema never goes to it as it came: each place is written anew with the few keywords that were tested
to hold, and what has no such form is refused, with the JSON pointer of the place and the keywords (`details.path`,
`details.keywords`). Some of what a schema allows is not generated:

* properties appear in the order of the schema, and properties that it does not mention do not appear, unless
  `additionalProperties` is `true` or a schema (`strict` mode); an object without `properties` is open;
* a schema without `type` takes the types that its keywords belong to; `{{"minLength": 2}}` gives strings;
* strings under a length, a pattern or a format have no escapes, so no quotes, backslashes and control characters;
* integers have no fraction and no exponent; numbers under a bound have no exponent;
* in patterns, `\\d`, `\\w` and `\\s` are ASCII, and `\\D`, `\\W` and `\\S` leave out what Unicode counts as such:
  validators differ there;
* at most {MAX_WHITE_SPACE} white space characters stand between two parts, so that a model which likes spaces comes
  to an end.

An answer that `max_tokens` cuts is the beginning of such a text; its finish reason is `length`.

"""

REGEX = f"""\
## Regular expressions

An expression matches the **whole** answer, as `re.fullmatch(..., re.ASCII)` does; characters are code points. `^`
and `$` (`\\A`, `\\Z`) may stand at the ends of an alternative and change nothing: `^a|b$` matches `a` and `b` and
nothing else. (In `pattern` of a schema they matter: there a match may stand anywhere in the string that is not tied
to an end.) `.` is everything but a line feed. Classes, also negated ones and in any script, `\\d \\w \\s` and their
negations, `\\xHH \\uHHHH \\UHHHHHHHH`, groups with and without names, and `* + ? {{m,n}}`, lazy or not, are what
they are in Python. Refused by name: look-ahead and look-behind, back-references, word boundaries, inline flags,
atomic groups and possessive repetition, conditions, Unicode properties, POSIX classes, anchors inside an
expression, comments. Limits: {regex.MAX_LENGTH:,} characters, {regex.MAX_DEPTH} nested groups, repetitions up to
{regex.MAX_REPEAT:,}.

## Grammars

EBNF as the library reads it: `name ::= ...`, beginning at `root`; strings with escapes, classes, groups, `|`, `* +
? {{m,n}}`, `#` comments. Left recursion is fine. A rule that needs itself to end is refused, and so is half of a
surrogate pair. Limits: {ebnf.MAX_BYTES:,} bytes, {ebnf.MAX_DEPTH} nested groups.

## Structural tags

Free text with constrained parts, as JSON. Formats: {", ".join(f"`{name}`" for name in structural_tag.FORMATS)}.
Schemas, expressions and grammars in them are held to the rules above; a schema is written as JSON, in the order of
its properties.
"""


def structured_output_page() -> str:
    """The page, made of texts and of tables."""
    return "\n".join(
        [
            "# Structured output: what is enforced",
            "",
            NOTICE,
            INSTALL,
            SCHEMAS.rstrip(),
            "",
            "### Enforced",
            "",
            "| keyword | how far |",
            "| --- | --- |",
            *(f"| `{key}` | {how or 'whole'} |" for key, how in ENFORCED.items()),
            "",
            f"`format` is one of: {', '.join(f'`{name}`' for name in FORMATS)}.",
            "They are narrow: everything that is generated is valid, and rare valid forms (years before 1000,",
            "leap seconds, IPv6 with `::`) are not generated.",
            "",
            "### Refused",
            "",
            "| keyword | why |",
            "| --- | --- |",
            *(f"| `{key}` | {why} |" for key, why in REFUSED.items()),
            "",
            "An unknown keyword is refused too, unless its name begins with `x-`. Left out, because they say nothing",
            f"about the value, are {', '.join(f'`{key}`' for key in ANNOTATIONS)}.",
            "",
            f"Limits: {json_schema.MAX_BYTES:,} bytes, {json_schema.MAX_DEPTH} levels,",
            f"{json_schema.MAX_PLACES:,} places.",
            "",
            REGEX,
        ]
    )
