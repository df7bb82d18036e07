"""The architectures with kernels: names as the manifest and reports have them."""

from __future__ import annotations

import re

SUPPORTED = ("ascend950",)
"""As ``Capabilities.arch`` and the manifest say."""
_DIGITS = re.compile(r"\d{3}[A-Z]?")


def arch_of(chip: str) -> str:
    """``ascend950`` of ``Ascend950PR_9599`` or ``950PR``; ``ascend910b`` of ``910B3``; empty for another name."""
    found = _DIGITS.search(chip.upper())
    if found is None:
        return ""
    series = found[0].lower()
    return f"ascend{series[:3] if series.startswith('950') else series}"
