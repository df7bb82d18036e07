"""Look a symbol up in a vendor library: by distribution and version, then by import, then by name.

That ``import flash_mla`` succeeds proves nothing: distributions of such names exist that hold no code.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attrs import frozen
from packaging.version import InvalidVersion, Version

from deepinfer_core.errors import VendorImportError


@frozen
class Vendor:
    """A library.

    :ivar name: as the setting and the messages call it.
    :ivar distributions: (name, lowest version) of each distribution that provides it; one has to be there.
    :ivar install: how a person gets it.
    """

    name: str
    distributions: tuple[tuple[str, str], ...]
    install: str


def symbol(vendor: Vendor, module: str, attribute: str) -> Callable[..., Any]:
    """``attribute`` (dotted for a member) of ``module``.

    :raises VendorImportError: not installed, too old, not importable (with the library's own words), or without it.
    """
    found = installed(vendor)
    try:
        value: Any = importlib.import_module(module)
    except Exception as exc:  # a shared library of another torch raises whatever it likes
        text = str(exc).splitlines()[0] if str(exc) else ""
        raise _refusal(vendor, f"{found} cannot be imported", f"import {module}: {type(exc).__name__}: {text}") from exc
    for name in attribute.split("."):
        value = getattr(value, name, None)
        if value is None:
            raise _refusal(vendor, f"{found} has no {module}.{attribute}", f"the attribute {name!r} is missing")
    if not callable(value):
        raise _refusal(vendor, f"{module}.{attribute} of {found} cannot be called", f"it is a {type(value).__name__}")
    called: Callable[..., Any] = value
    return called


def installed(vendor: Vendor) -> str:
    """``deepinfer-flashmla 1.0.0``: the distribution that provides the library. Raises VendorImportError."""
    old: list[str] = []
    for name, lowest in vendor.distributions:
        try:
            found = version(name)
        except PackageNotFoundError:
            continue
        if _at_least(found, lowest):
            return f"{name} {found}"
        old.append(f"{name} {found} is here, {lowest} is needed")
    names = " or ".join(name for name, _ in vendor.distributions)
    raise _refusal(
        vendor, f"vendor library {vendor.name!r} cannot be used", "; ".join(old) or f"{names} is not installed"
    )


def _at_least(found: str, lowest: str) -> bool:
    try:
        return Version(found) >= Version(lowest)
    except InvalidVersion:
        return False


def _refusal(vendor: Vendor, what: str, reason: str) -> VendorImportError:
    return VendorImportError(
        what,
        reason=reason,
        remedy=f"{vendor.install}; or leave {vendor.name!r} out of DEEPINFER_CUDA_VENDORS",
        details={"backend": "cuda", "vendor": vendor.name},
    )
