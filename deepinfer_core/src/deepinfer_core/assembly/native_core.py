"""The native core, or a typed error that says why there is none."""

from __future__ import annotations

from typing import Any

from deepinfer_core.errors import CapacityError, ConfigError, DeepInferError, EngineError
from deepinfer_core.plugins.failure import contract_error


def load_native() -> None:
    """Import ``deepinfer_native``, which compares its contracts with the installed ones.

    Raises ContractError for a library built from other contracts, or where there are none, EngineError for one that
    cannot be loaded.
    """
    try:
        from deepinfer_contracts import ContractMismatch
    except ModuleNotFoundError as err:
        if err.name != "deepinfer_contracts":
            raise
        from deepinfer_core.plugins.claims import contracts_missing

        raise contracts_missing("the records of a step come from it") from err

    try:
        import deepinfer_native  # noqa: F401
    except ContractMismatch as err:
        raise contract_error(err) from err
    except ImportError as err:
        raise EngineError(
            "the native core cannot be loaded",
            reason=str(err),
            remedy="pip install --force-reinstall deepinfer-native, built for this Python and machine",
        ) from err


def make_core(**settings: Any) -> Any:
    """A ``deepinfer_native.Core``. Raises ConfigError for a setting that it refuses."""
    load_native()
    from deepinfer_native import Core, CoreConfig, NativeError

    try:
        return Core(CoreConfig(**settings))
    except NativeError as err:
        raise _refusal(err) from err


def _refusal(err: Any) -> DeepInferError:
    from deepinfer_native.errors import CapacityError as OutOfMemory

    details = {"field": err.field}
    if isinstance(err, ValueError):
        return ConfigError(str(err), remedy="correct the setting of that name", details=details)
    if isinstance(err, OutOfMemory):
        return CapacityError(
            "there is not enough memory for the tables of the scheduler",
            reason=str(err),
            remedy="free memory, or lower --max-num-seqs, --max-num-batched-tokens or --kv-memory",
            details=details,
        )
    return EngineError("the native core cannot be made", reason=str(err), details=details)
