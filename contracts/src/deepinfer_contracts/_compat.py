"""Whether two sides mean the same record: prefix hash chains (`verify`, `compatible`) and the error that says no."""

from __future__ import annotations

from attrs import frozen


@frozen
class ContractInfo:
    """One record as one side knows it. ``chain[n]`` is the prefix hash of the first ``n`` fields."""

    name: str
    version: str
    struct: str
    semantic_hash: str
    fields: tuple[tuple[str, str], ...]
    chain: tuple[int, ...]

    @property
    def layout_hash(self) -> int:
        return self.chain[-1]
