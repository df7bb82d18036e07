"""One thing of one row, beside the rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define, frozen

from deepinfer_verify.replay.contents import Values, empty, key_values, shown
from deepinfer_verify.replay.core_run import Request
from deepinfer_verify.replay.findings import Findings
from deepinfer_verify.replay.rule import Geometry


class StepRow:
    """One request of a step: positions ``[begin, end)``, and the units that it has."""

    def __init__(self, index: int, request: Request, step: Any) -> None:
        self.index, self.request = index, request
        self.uid = int(step.seq_uid[index])
        self.end = int(step.seqlens_k[index])
        self.begin = self.end - int(step.seqlens_q[index])
        self.valid_start = int(step.swa_valid_start[index])
        self.hit_tokens, self.replayed_tokens = int(step.hit_tokens[index]), int(step.replayed_tokens[index])
        self.swa_slot = int(step.swa_slot[index])
        begin, end = step.bt_offsets[index : index + 2].tolist()
        self.table: list[int] = step.bt_ids[begin:end].tolist()
        self.add_drafts(())

    @property
    def case(self) -> str:
        return self.request.case

    @property
    def chunk(self) -> str:
        return f"[{self.begin}, {self.end})"

    @property
    def own(self) -> Values:
        """Values of the rows of this step."""
        return self.values[self.begin : self.end]

    def add_drafts(self, drafts: Sequence[int]) -> None:
        """The tokens that this step verifies, behind those that are known."""
        self.shared = self.request.values(drafts)
        self.values = self.shared | (self.uid << 32)


@define
class Caches:
    """What the units of a core hold."""

    encoder: Values
    """Window rings, of the layers in front of the boundary."""
    decoder: Values
    keys: dict[int, Values]
    """Of each ratio: compressed keys by slot."""

    @classmethod
    def of(cls, geometry: Geometry, num_swa_slots: int, num_blocks: int) -> Caches:
        rings = num_swa_slots * geometry.ring
        keys = {ratio: empty(num_blocks * (geometry.block // ratio)) for ratio in geometry.ratios}
        return cls(empty(rings), empty(rings), keys)


@frozen
class Beside:
    """Compares, and notes what differs."""

    geometry: Geometry
    dense: tuple[int, ...]
    """Ratios whose keys the arrays name by start and count as well."""
    findings: Findings

    def window(self, kind: str, row: StepRow, where: str, expected: range, seen: Values) -> None:
        """What a row's window holds: ``expected`` positions of its own sequence."""
        self.content(kind, row, where, row.values[expected.start : expected.stop], seen, row.values)

    def keys(
        self, row: StepRow, where: str, ratio: int, count: int, spans: Sequence[tuple[int, int]], held: Values
    ) -> None:
        """The compressed keys that a row sees: the first ``count``, in each of ``spans`` of ``held``."""
        where = f"{where}, keys of ratio {ratio}"
        for begin, end in spans:
            self.findings.check("visible keys", row.case, where, count, end - begin)
            self.content("key contents", row, where, key_values(row.shared, ratio)[:count], held[begin:end], row.shared)

    def content(self, kind: str, row: StepRow, where: str, expected: Values, seen: Values, known: Values) -> None:
        self.findings.compared[kind] += 1
        if not np.array_equal(expected, seen):
            self.findings.differs(kind, row.case, where, shown(expected, known), shown(seen, known))

    def slot(self, kind: str, row: StepRow, where: str, position: int, stores: bool, found: int) -> None:
        """Where a row's window key goes, -1 nowhere."""
        expected = row.swa_slot * self.geometry.ring + position % self.geometry.ring if stores else -1
        self.findings.check(kind, row.case, f"{where}, window slot", expected, found)

    def key_slot(self, row: StepRow, key: int, ratio: int) -> int:
        """Where a compressed key is."""
        per_block = self.geometry.block // ratio
        return row.table[key // per_block] * per_block + key % per_block
