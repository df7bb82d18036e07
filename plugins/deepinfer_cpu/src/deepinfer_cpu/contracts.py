"""The one error every op raises for an argument that breaks its contract (``spec/kernels.md`` 3.1)."""

from __future__ import annotations

from deepinfer_core.errors import ShapeContractError


def shape_error(op: str, argument: str, expected: object, got: object) -> ShapeContractError:
    """An E_SHAPE naming op, argument, what was expected and what came. The caller raises it."""
    return ShapeContractError(
        f"{op}: argument '{argument}' must be {expected}, got {got}",
        reason="the caller and the op disagree on a shape, dtype or option",
        remedy="this is a fault of the model plugin or of the engine, please report it",
        details={"op": op, "argument": argument, "expected": str(expected), "got": str(got)},
    )
