"""A hundred expressions of the dialect, and texts around them; ``re`` with ``re.ASCII`` is the judge."""

from __future__ import annotations

REGEXES: list[str] = [
    # letters, classes, escapes
    r"a", r"abc", r"", r"[abc]", r"[^abc]", r"[a-z]+", r"[^a-z]{2}", r"[a\-z]", r"[\]\[]", r"[\^a]", r"[a^]", r"[.]",
    r"\.",
    r"\$\^", r"[$^|*+?(){}]", r"\\", r"[\\]", r"\/", r"\n", r"\t\r\f\v", r"\x41\x0a", r"\u0041é", r"\U0001F600",
    r"[\b]", r"\0",
    # outside ASCII
    r"[^é]", r"[^àâéèêëîïôûù]+", r"[а-я]+", r"[А-ЯЁ][а-яё]*", r"[^а-я]", r"日本|é", r"[一-龥]{1,3}",
    r"[😀-😂]", r"😀{2}",
    r"[ぁ-ん]+", r"ß|ẞ", r"\u00e9\u0301?", r"[\u0391-\u03a9]", r"naïve", r"ї{2,3}", r"[^\u0000-\u007f]", r"(да|нет)!?",
    # shorthands
    r"\d", r"\D", r"\w+", r"\W", r"\s", r"\S{3}", r"[\d_]", r"[^\d]", r"[^\w\s]", r"[\s\S]", r"[\w-]+", r".", r".*",
    r"a.c",
    # repetition
    r"a*", r"a+", r"a?", r"a{3}", r"a{2,}", r"a{2,4}", r"a{0}", r"a{0,2}b", r"(ab)*", r"(?:ab){2}", r"(a|b){3}",
    r"a*?b+?c??",
    r"(?:a{1,2}){2}", r"x|x{0,2}", r"(?:xy+)?", r"(?:x*y)*", r"(a*)*", r"(?:a|ab)(?:c|bc)",
    # choice and groups
    r"a|b", r"a||b", r"(|a)b", r"(?:yes|no|maybe)", r"((a)(b(c)))", r"(?P<year>\d{4})-(?P<month>\d\d)",
    r"(a|b(c|d(e|f)))",
    # anchors at the ends
    r"^a|b$", r"^abc$", r"^^a$$", r"\Aab\Z", r"^$", r"^(a|b)$", r"^a$|^bc$|d",
    # things that people write
    r"[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+\.[A-Za-z]{2,6}", r"\d{3}-\d{3}-\d{4}", r"#[0-9a-fA-F]{6}",
    r"-?\d+(\.\d+)?([eE][+-]?\d+)?",
    r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}", r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    r"(0[1-9]|1[0-2])/(0[1-9]|[12]\d|3[01])/(19|20)\d\d", r"M{0,3}(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})",
    r"(GET|POST|PUT) /[a-z/]* HTTP/1\.[01]", r"\"[^\"\n]*\"", r"[+-]?(\d+)(, [+-]?\d+)*", r"(?:[^,]*,){2}[^,]*",
]  # fmt: skip

TEXTS: list[str] = [
    "", "a", "b", "c", "ab", "aa", "abc", "ac", "bc", "aab", "aaa", "aaaa", "abab", "aaab", "xyy", "y", "yy", "x",
    "xx", "xxx",
    "xy", "bx", "ax", "A", "A\n", "Z", "é", "É", "ê", "я", "Я", "Привет", "слово", "ё", "日", "日本", "日本語",
    "ß", "ẞ", "ї", "її", "😀", "😀😀", "😁", "あ", "Ω", "é\u0301", "1", "12", "0", "٣", "_", "-", "]",
    "[", "^", "$", "$^", ".", "\\",
    "/", "|", " ",
    "\n", "\t", "\r", "\x0b", "\x0c", "\t\r\x0c\x0b", "\b", "\0", "\u00a0", "\u2028", "a.c", "a\nc", "yes", "no",
    "may", "d",
    "2024-05", "abe", "be", "#a0b1c2", "-1.5e+3", "1.", "10.0.0.1", "300.1.1.1", "MCMXCIV", "IIII", '"q"', '"',
    "1, -2, +3",
    "a b", "a@b.cd", "555-123-4567", "GET /a HTTP/1.1", "naïve", "naive", "bb", "aba", "acb", "abbc",
]  # fmt: skip
