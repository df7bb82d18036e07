"""The base of all records: what every contract record can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from attrs import define

if TYPE_CHECKING:
    from deepinfer_contracts._records import Limits, SchedulerOutputs


@define(eq=False)
class Record:
    """A contract record. Compared by identity; its arrays may be views over memory of the producer."""

    CONTRACT: ClassVar[str] = ""
    CHAIN: ClassVar[int] = 0
    FIELDS: ClassVar[tuple[str, ...]] = ()

    def has(self, field: str) -> bool:
        """Whether this record has the field, and it is present. False for a field of a newer contract."""
        return field in self.FIELDS and getattr(self, field) is not None

    def validate(
        self, limits: Limits, level: int = 1, *, step: SchedulerOutputs | None = None, step_id: int | None = None
    ) -> None:
        """Check shapes, dtypes, presence and every rule of the schema at ``level`` (`Level`).

        ``step``: the SchedulerOutputs of the same step, for the rules that compare with it.
        ``step_id``: named in the violation where the record has no step id of its own.
        Raises ContractViolation.
        """
        from deepinfer_contracts._validation import validate  # a cycle otherwise: the validators import the records

        validate(self, limits, level, step=step, step_id=step_id)
