"""The base of all typed errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from deepinfer_core.errors.exit_statuses import EXIT_INTERNAL


class DeepInferError(Exception):
    """Base of all typed errors. ``what`` names the failure with its values.

    :cause: A fault of DeepInfer or of a plugin that has no class of its own.
    :remedy: Run the command again with ``--debug`` and report the traceback.

    :param reason: Why it happened, as far as known.
    :param remedy: What the reader can do about it.
    :param details: Machine-readable values (JSON-serialisable), for ``--json`` and for tests.
    """

    code: ClassVar[str] = "E_INTERNAL"
    exit_status: ClassVar[int] = EXIT_INTERNAL

    def __init__(
        self, what: str, *, reason: str = "", remedy: str = "", details: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.reason = reason
        self.remedy = remedy
        self.details: dict[str, object] = dict(details or {})

    def __str__(self) -> str:
        lines = [f"{self.code}: {self.what}"]
        if self.reason:
            lines.append(f"  reason: {self.reason}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)

    def as_record(self) -> dict[str, object]:
        """The same error as data, for JSON output."""
        return {
            "code": self.code,
            "message": self.what,
            "reason": self.reason,
            "remedy": self.remedy,
            **({"details": self.details} if self.details else {}),
        }
