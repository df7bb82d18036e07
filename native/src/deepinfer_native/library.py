"""The compiled library, checked once at import: it must be of this package's version and of the installed contracts."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from deepinfer_contracts import verify
from deepinfer_native import _native  # type: ignore[attr-defined]
from deepinfer_native.errors import BY_CODE, ArgumentError, InternalError, NativeError

ffi: Any = _native.ffi
lib: Any = _native.lib


class VersionMismatch(ImportError):
    """The compiled library belongs to another version of this distribution."""


def verify_library(version_of_package: str) -> None:
    """Refuse a library of another version (VersionMismatch) or of other contracts (ContractMismatch)."""
    compiled = ffi.string(lib.di_version()).decode()
    if compiled != version_of_package:
        raise VersionMismatch(
            f"deepinfer-native is {version_of_package}, its compiled library is {compiled}; "
            "reinstall deepinfer-native (pip install --force-reinstall deepinfer-native)"
        )
    verify(ffi, lib, name="deepinfer-native")


def last_error(code: int) -> NativeError:
    """The calling thread's failure as an exception."""
    text = ffi.string(lib.di_last_error().message).decode(errors="replace")
    contract, field = (ffi.string(p).decode() for p in (lib.di_last_contract(), lib.di_last_field()))
    return BY_CODE.get(code, InternalError)(text, contract=contract, field=field)


def check(code: int) -> None:
    """Raise what a status code stands for; 0 is success."""
    if code:
        raise last_error(code)


def misfit(error: Exception) -> ArgumentError:
    """What cffi's refusal of a caller's number is to the caller."""
    return ArgumentError(f"an argument does not fit: {error}")


def call(function: Any, *arguments: Any) -> None:
    """`check` of a call with a caller's numbers; one that does not fit its C type is an ArgumentError."""
    try:
        code = function(*arguments)
    except (TypeError, OverflowError) as error:
        raise misfit(error) from error
    if code:
        raise last_error(code)


verify_library(version("deepinfer-native"))
