"""Thirty grammars in the compiler's EBNF, and the same for ``lark``, whose Earley parser is the judge."""

from __future__ import annotations

import re

GRAMMARS: dict[str, str] = {
    "word": 'root ::= "hello"',
    "choice": 'root ::= "yes" | "no" | "maybe"',
    "classes": "root ::= [a-c] [^a-c\\n] [0-9_]+",
    "optional": 'root ::= "a"? "b"* "c"+',
    "counted": 'root ::= "a"{2} [xy]{1,3} ("no" | "on"){0,2}',
    "unicode": 'root ::= [а-яё]+ ("é" | "日本") "!"?',
    "escapes": 'root ::= "\\"" [^"\\\\\\n]* "\\"" "\\t"? "\\u00e9"',
    "arithmetic": 'root ::= expr\nexpr ::= term (("+" | "-") term)*\nterm ::= factor (("*" | "/") factor)*\n'
    'factor ::= number | "(" expr ")"\nnumber ::= [0-9]+',
    "left": 'root ::= root "+" item | item\nitem ::= [a-z]',
    "right": 'root ::= item "," root | item\nitem ::= [0-9]',
    "anbn": 'root ::= "a" root "b" | "ab"',
    "palindrome": 'root ::= "a" root "a" | "b" root "b" | "c"',
    "brackets": 'root ::= pair+\npair ::= "(" pair* ")" | "[" pair* "]" | "{" pair* "}"',
    "list": 'root ::= "[" (item ("," item)*)? "]"\nitem ::= [0-9]+ | root',
    "lisp": 'root ::= atom | "(" root (" " root)* ")"\natom ::= [a-z]+ | [0-9]+',
    "csv": 'root ::= row ("\\n" row)*\nrow ::= cell ("," cell)*\ncell ::= [a-z0-9 ]*',
    "ini": 'root ::= section+\nsection ::= "[" name "]\\n" (name "=" [^\\n]* "\\n")*\nname ::= [a-z]+',
    "ipv4": 'root ::= byte ("." byte){3}\nbyte ::= "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9]? [0-9]',
    "date": 'root ::= year "-" month "-" day\nyear ::= [0-9]{4}\nmonth ::= "0" [1-9] | "1" [0-2]\n'
    'day ::= "0" [1-9] | [12] [0-9] | "3" [01]',
    "roman": 'root ::= tens ones\ntens ::= "XC" | "XL" | "L"? "X"{0,3}\nones ::= "IX" | "IV" | "V"? "I"{0,3}',
    "chess": 'root ::= move (" " move)*\nmove ::= [KQRBN]? [a-h]? "x"? [a-h] [1-8] ("=" [QRBN])? [+#]? | "O-O" "-O"?',
    "markup": 'root ::= "<b>" text "</b>" | "<i>" text "</i>"\ntext ::= (word | root)*\nword ::= [a-z ]',
    "logic": 'root ::= or\nor ::= and (" or " and)*\n'
    'and ::= not (" and " not)*\nnot ::= "not " not | "(" or ")" | [p-s]',
    "assignment": 'root ::= (name " = " value "\\n")+\n'
    'name ::= [a-z_] [a-z0-9_]*\nvalue ::= [0-9]+ | name | name "(" value? ")"',
    "json": 'root ::= value\nvalue ::= object | array | string | number | "true" | "false" | "null"\n'
    'object ::= "{" (pair ("," pair)*)? "}"\npair ::= string ":" value\narray ::= "[" (value ("," value)*)? "]"\n'
    'string ::= "\\"" [a-zA-Z0-9 ]* "\\""\nnumber ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)?',
    "sql": 'root ::= "SELECT " columns " FROM " name (" WHERE " test)?\ncolumns ::= "*" | name ("," name)*\n'
    'test ::= name ("=" | "<" | ">") [0-9]+ (" AND " test)?\nname ::= [a-z]+',
    "url": 'root ::= "http" "s"? "://" host ("/" part)* ("?" pair ("&" pair)*)?\nhost ::= label ("." label)+\n'
    'label ::= [a-z0-9]+\npart ::= [a-z0-9]*\npair ::= label "=" label',
    "nested-choice": 'root ::= (("a" | "b") ("c" | ("d" | "e") "f")?)+ "."',
    "nullable": 'root ::= a b a\na ::= "x" a | ""\nb ::= ("y" | "")\n',
    "comments": 'root ::= a # the first rule\n# a line\n  | "z"\na ::= "p" "q"? # end',
}

_TOKEN = re.compile(
    r'(?P<text>"(?:[^"\\]|\\.)*")'
    r"|(?P<set>\[(?:[^\]\\]|\\.)*\])|(?P<comment>#[^\n]*)|(?P<least>\{[0-9]+(?:,[0-9]+)?\})"
    r"|(?P<is>::=)|(?P<name>[a-z]+)|(?P<other>.)",
    re.DOTALL,
)


def as_lark(grammar: str) -> str:
    """The same grammar for ``lark.Lark(..., start="root", parser="earley", lexer="dynamic_complete")``."""
    out = []
    for token in _TOKEN.finditer(grammar):
        text = token.group()
        if token["text"]:
            out.append("()" if text == '""' else text)
        elif token["set"]:
            out.append("/" + text.replace("/", "\\/") + "/")
        elif token["least"]:
            out.append("~" + text[1:-1].replace(",", ".."))
        elif token["name"]:  # rules of lark must not be words of its own
            out.append("root" if text == "root" else f"r_{text}")
        elif not token["comment"]:
            out.append(":" if token["is"] else text)
    return re.sub(r"\n\s*\|", " |", "".join(out)) + "\n"
