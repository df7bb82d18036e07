"""What a native call can refuse, one class for each status code of the core."""

from __future__ import annotations

from deepinfer_contracts import ErrorCode


class NativeError(Exception):
    """A call of the native core failed and changed nothing (except `InternalError`).

    :param code: `deepinfer_contracts.ErrorCode`.
    :param contract: Record that the failure is about, or ``""``.
    :param field: Field, argument or setting that it is about, or ``""``.
    :param message: The rest, with the values.
    """

    code: ErrorCode = ErrorCode.INTERNAL

    def __init__(self, message: str, *, contract: str = "", field: str = "") -> None:
        super().__init__(message)
        self.contract = contract
        self.field = field
        self.message = message

    def __str__(self) -> str:
        where = ".".join(part for part in (self.contract, self.field) if part)
        return f"{where}: {self.message}" if where else self.message


class ConfigurationError(NativeError, ValueError):
    """A setting is out of its bound; names field, value and bound."""

    code = ErrorCode.CONFIG


class ArgumentError(NativeError, ValueError):
    """An argument of a call is malformed or out of range."""

    code = ErrorCode.ARG


class OrderError(NativeError):
    """A call came out of turn: steps are packed, committed and reported done in order."""

    code = ErrorCode.ORDER


class BusyError(NativeError):
    """Another thread is inside an engine call of the same core."""

    code = ErrorCode.BUSY


class CapacityError(NativeError):
    """Memory, or a fixed number of something, is used up."""

    code = ErrorCode.CAPACITY


class StaleHandleError(NativeError):
    """What the handle named is gone: it was given back or used up, or the core is closed."""

    code = ErrorCode.STALE_HANDLE


class StaleBatchError(StaleHandleError):
    """An event batch is read after its memory went to a later one."""


class ContractError(NativeError, ValueError):
    """A record that was handed to the core breaks its contract; names the field. Nothing changed."""

    code = ErrorCode.CONTRACT


class NotFoundError(NativeError, LookupError):
    """No live request has this uid."""

    code = ErrorCode.NOT_FOUND


class InternalError(NativeError):
    """The core contradicts itself; afterwards it refuses all but ``audit``, ``check``, ``stats`` and ``close``."""

    code = ErrorCode.INTERNAL


BY_CODE: dict[int, type[NativeError]] = {
    int(cls.code): cls
    for cls in (
        ConfigurationError,
        ArgumentError,
        OrderError,
        BusyError,
        CapacityError,
        StaleHandleError,
        ContractError,
        NotFoundError,
        InternalError,
    )
}
