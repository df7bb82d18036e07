"""Whether a run may go on with a file that an earlier one began: its answers must be such as this one would give.

What chooses no token may change, such as how many sequences run at a time: a run that ended for want of memory goes on
with less. What differs of that kind, and versions, are told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deepinfer_core.errors import RunMismatch
from deepinfer_eval.answers import Header

SCHEDULING = frozenset(
    {
        *("kv_memory", "max_num_seqs", "max_num_batched_tokens", "max_chunk", "chunked_prefill", "target_itl_ms"),
        *("block_size", "prefix_cache", "num_threads", "device", "overlap", "draft_schedule"),
    }
)
"""Settings that may be others."""
SHOWN = 60
"""Characters of a value in a message."""


def require_same_parts(path: str, begun: Header, now: Mapping[str, Any]) -> None:
    """Compare what is known before a model is loaded: data set, samples, parameters.

    :param now: These three, under their names in the header.
    :raises RunMismatch: naming all that differs.
    """
    before = begun.as_record()
    differences = [
        f"{name} is {_shown(now['dataset'][name])}, was {_shown(begun.dataset.get(name))}"
        for name in ("sha256", "items")
        if now["dataset"][name] != begun.dataset.get(name)
    ]
    if before["samples"] != now["samples"]:
        differences.append(f"there are {now['samples']} samples of an item, were {before['samples']}")
    differences += _of_tables(begun.parameters, now["parameters"])
    if differences:
        raise _mismatch(path, differences)


def require_same_run(path: str, begun: Header, run: Mapping[str, Any]) -> list[str]:
    """Compare the loaded model with the one of the file.

    :returns: What differs and may, one phrase each.
    :raises RunMismatch: naming all that may not differ.
    """
    before = begun.run
    differences = [
        f"the model's {key} is {_shown(run.get(key))}, was {_shown(before.get(key))}"
        for key in ("fingerprint", "max_model_len")
        if run.get(key) != before.get(key)
    ]
    told = list(_of_tables(before.get("versions", {}), run.get("versions", {})))
    told += [
        f"{key} is {run.get(key)}, was {before.get(key)}"
        for key in ("backend", "arch", "machine")
        if run.get(key) != before.get(key)
    ]
    held, settings = before.get("settings", {}), run.get("settings", {})
    for name in sorted({*held, *settings}):
        changed = list(_of_tables(_only(held, name), _only(settings, name)))
        (told if name in SCHEDULING else differences).extend(changed)
    if differences:
        raise _mismatch(path, differences)
    return told


def _only(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: table[name]} if name in table else {}


def _of_tables(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*before, *now}):
        is_now, was = (table.get(name, "at its default") for table in (now, before))
        if is_now != was:
            yield f"{name} is {_shown(is_now)}, was {_shown(was)}"


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def _mismatch(path: str, differences: list[str]) -> RunMismatch:
    return RunMismatch(
        f"{path} was begun by another run",
        reason="; ".join(differences),
        remedy="give what the file was begun with, or another file to --out",
        details={"path": path, "differences": differences},
    )
