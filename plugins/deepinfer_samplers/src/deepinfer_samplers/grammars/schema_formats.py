"""Values of ``format`` that are enforced, each as an expression for the whole string.

A grammar cannot look a date up, so the expressions are narrow: everything they match is valid, and rare valid forms
(years before 1000, leap seconds, IPv6 with ``::``, quoted mailboxes) are not generated.
"""

from __future__ import annotations

_YEAR = "[1-9][0-9]{3}"
_LEAP = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DAY = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:[.][0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
# Every count is a state that the compiler works out for the whole vocabulary: few of them, and small.
_HOST = "[a-z][a-z0-9]{0,15}(?:[.][a-z][a-z0-9]{0,15}){0,2}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_NUMBER = "(?:0|[1-9][0-9]{0,5})"

FORMATS: dict[str, str] = {
    "date": _DAY,
    "time": _CLOCK,
    "date-time": f"{_DAY}T{_CLOCK}",
    "duration": f"P(?:{_NUMBER}W|{_NUMBER}D|(?:{_NUMBER}D)?T(?:{_NUMBER}H)?(?:{_NUMBER}M)?{_NUMBER}S)",
    "email": f"[a-z0-9]+(?:[._-][a-z0-9]+)*@{_HOST}",
    "hostname": _HOST,
    "ipv4": f"{_BYTE}(?:[.]{_BYTE}){{3}}",
    "ipv6": "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}",
    "uri": "https?://[a-z][a-z0-9]*(?:[.][a-z][a-z0-9]*)*(?:/[A-Za-z0-9._~-]*)*(?:[?][A-Za-z0-9=&._~-]*)?",
    "uuid": "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "json-pointer": "(?:/(?:[A-Za-z0-9_.-]|~[01])*)*",
}
