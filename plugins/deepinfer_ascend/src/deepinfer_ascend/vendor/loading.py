"""Look a symbol up in a vendor library. That an import succeeds proves nothing: distributions without code exist."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from deepinfer_ascend.vendor.table import Symbol
from deepinfer_core.errors import VendorImportError


@functools.cache
def resolve(symbol: Symbol) -> Callable[..., Any]:
    """The callable. Raises VendorImportError with the library's own words."""
    try:
        module = importlib.import_module(symbol.module)
    except Exception as exc:  # a shared library without CANN raises whatever it likes
        first = str(exc).splitlines()[0] if str(exc) else ""
        raise _refusal(symbol, "cannot be imported", f"import {symbol.module}: {type(exc).__name__}: {first}") from exc
    found: Any = getattr(module, symbol.attribute, None)
    if not callable(found):
        raise _refusal(symbol, f"has no {symbol.attribute}", f"{symbol.module} at {module.__file__ or 'no file'}")
    called: Callable[..., Any] = found
    return called


def _refusal(symbol: Symbol, what: str, reason: str) -> VendorImportError:
    return VendorImportError(
        f"{symbol.module}, of {symbol.distribution}, {what}",
        reason=reason,
        remedy=f"install {symbol.distribution}; {', '.join(symbol.ops)} cannot run without it; or choose --backend cpu",
        details={"backend": "ascend", "vendor": symbol.distribution, "symbol": symbol.attribute},
    )
