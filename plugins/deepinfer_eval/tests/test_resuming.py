"""Which runs may go on with a file."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from deepinfer_core.errors import RunMismatch
from deepinfer_eval.answers import Header
from deepinfer_eval.resuming import require_same_parts, require_same_run


def parts(header: Header, **changes: Any) -> dict[str, Any]:
    return {
        "dataset": dict(header.dataset),
        "samples": header.samples,
        "parameters": dict(header.parameters),
        **changes,
    }


def test_equal_parts_pass_whatever_the_file_is_called(header: Header) -> None:
    require_same_parts("a", header, parts(header, dataset={**header.dataset, "name": "elsewhere.jsonl"}))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dataset": {"name": "d", "sha256": "1", "items": 3}}, f"sha256 is 1, was {'0' * 57}..."),
        ({"samples": 4}, "there are 4 samples of an item, were 2"),
        ({"parameters": {"max_tokens": 9, "seed": 0}}, "max_tokens is 9, was 8"),
        (
            {"parameters": {"max_tokens": 8, "seed": 0, "top_p": 0.9}},
            "top_p is 0.9, was at its default",
        ),
    ],
)
def test_other_parts_are_refused_by_name(header: Header, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RunMismatch) as caught:
        require_same_parts("a", header, parts(header, **changes))
    assert (caught.value.reason.replace("0" * 60, "0" * 57 + "..."), caught.value.exit_status) == (reason, 5)


def test_another_model_or_a_setting_that_chooses_tokens_is_refused(header: Header) -> None:
    run = {**header.run, "fingerprint": "blake2b:2", "settings": {"numeric_mode": "exact", "max_num_seqs": 2}}
    with pytest.raises(RunMismatch) as caught:
        require_same_run("a", header, run)
    assert caught.value.details["differences"] == [
        "the model's fingerprint is blake2b:2, was blake2b:1",
        "numeric_mode is exact, was at its default",
    ]


def test_scheduling_and_versions_may_differ_and_are_told(header: Header) -> None:
    begun = evolve(header, run={**header.run, "settings": {"max_num_seqs": 256}, "versions": {"torch": "1"}})
    told = require_same_run("a", begun, {**header.run, "settings": {"max_num_seqs": 2}, "versions": {"torch": "2"}})
    assert told == ["torch is 2, was 1", "max_num_seqs is 2, was 256"]
