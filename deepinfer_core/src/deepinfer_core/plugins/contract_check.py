"""Compare the contract chains that a manifest declares with those installed here (``spec/plugins.md`` 6)."""

from __future__ import annotations

from deepinfer_core.records import CONTRACTS


def contract_difference(record: str, fields: int, chain: str) -> str | None:
    """How a declared record differs from ours, or None when both agree on its first ``fields`` fields.

    :param chain: Prefix hash after field ``fields``, 16 hexadecimal digits.
    """
    ours = CONTRACTS.get(record)
    if ours is None:
        return f"there is no record of that name here (there are {', '.join(sorted(CONTRACTS))})"
    if fields >= len(ours.chain):
        return f"it reads {fields} fields, and the record here has {len(ours.fields)}"
    here = f"{ours.chain[fields]:016x}"
    return None if here == chain else f"chain after field {fields} is {chain} there and {here} here"
