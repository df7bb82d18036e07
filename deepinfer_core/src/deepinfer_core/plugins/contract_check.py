"""Compare the contract chains that a manifest declares with those installed here (``spec/plugins.md`` 6)."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.records import CONTRACTS


def contract_difference(record: str, fields: int, chain: str, chains: Sequence[str] = ()) -> tuple[str, str] | None:
    """How a declared record differs from ours, and the first field that does if that can be told; None: it does not.

    :param chain: Prefix hash after field ``fields``, 16 hexadecimal digits.
    :param chains: Prefix hash after each field, or nothing. One hash alone says that something differs, not what.
    """
    ours = CONTRACTS.get(record)
    if ours is None:
        return f"there is no record of that name here (there are {', '.join(sorted(CONTRACTS))})", ""
    for place, theirs in enumerate(chains[: len(ours.fields)]):
        if f"{ours.chain[place + 1]:016x}" != theirs:
            name, form = ours.fields[place]
            return f"at field {place}, {name}, which is {form} here", name
    if fields >= len(ours.chain):
        last = ours.fields[-1][0]
        return f"it reads {fields} fields, and the record here has {len(ours.fields)}, up to {last}", ""
    here = f"{ours.chain[fields]:016x}"
    return None if here == chain else (f"chain after field {fields} is {chain} there and {here} here", "")
