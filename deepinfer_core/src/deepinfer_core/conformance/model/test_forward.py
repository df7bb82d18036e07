"""One forward: shapes, types, and that it is a function of its inputs (``interfaces.Model``)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.failures import require, require_equal
from deepinfer_core.conformance.model.closeness import require_same_rows
from deepinfer_core.interfaces import Model

pytestmark = pytest.mark.level("smoke")


def require_logits(logits: Any, rows: Any, rig: Any, what: Any) -> None:
    require_equal(logits.shape, (rows, rig.model.vocab_size), f"{what}: logits have a wrong shape")
    require(not np.isnan(logits).any(), f"{what}: logits are NaN")
    require(not np.isposinf(logits).any(), f"{what}: logits are +inf")
    require(np.isfinite(logits).any(axis=1).all(), f"{what}: a row has no finite logit")


def test_model_is_one(rig: Any) -> None:
    require(isinstance(rig.model, Model), "it is no Model")
    size = rig.model.vocab_size
    require(isinstance(size, int) and size > 0, "vocab_size is no number of tokens", got=size)
    known = rig.hints.vocab_size
    require(known is None or 0 < known <= size, "the hints name more tokens than the model has", got=known, limit=size)


@pytest.mark.parametrize("length", [1, 2, 3, 17])
def test_prompt_gives_a_row_of_finite_logits_for_each_token(rig: Any, length: Any) -> None:
    require_logits(rig.rows(rig.prompt(length, seed=length)), length, rig, f"a prompt of {length}")


def test_decode_step_gives_a_row_for_each_request(rig: Any) -> None:
    texts = [rig.open(rig.prompt(n, seed=n)) for n in (2, 5, 9)]
    for text in texts:
        rig.prefill(text, len(text.tokens) - 1)
    logits = rig.run([(text, 1) for text in texts], prompt=False)
    rig.close(*texts)
    require_logits(logits, 3, rig, "a decode step")


def test_first_and_last_ids_of_the_vocabulary_can_be_in_a_prompt(rig: Any) -> None:
    require_logits(rig.rows([0, rig.vocab_size - 1, 0]), 3, rig, "the edges of the vocabulary")


def test_repeated_forward_gives_the_same_bits(rig: Any) -> None:
    tokens = rig.prompt(23, seed=4)
    require(np.array_equal(rig.rows(tokens), rig.rows(tokens)), "a repeated run gives other logits")


def test_head_of_some_rows_is_that_of_all_rows(rig: Any) -> None:
    """The engine takes the head of the rows that are sampled only."""
    text = rig.open(rig.prompt(19, seed=5))
    whole = rig.run([(text, 19)], prompt=True)
    picked = rig.logits(rig.hidden[rig.device([18, 3, 7])])
    rig.close(text)
    require_same_rows(picked, whole[[18, 3, 7]], rig.backend, "the head depends on the rows beside a row")


def test_tokens_have_an_effect_on_the_logits(rig: Any) -> None:
    """Over a long random text; what its training never saw may give equal rows, but not everywhere."""
    rows = rig.rows(rig.prompt(min(rig.max_len, 200), seed=6))
    require(len(np.unique(rows, axis=0)) > 1, "all rows are alike: tokens have no effect on the logits")


def test_later_tokens_do_not_change_a_row(rig: Any) -> None:
    tokens = rig.prompt(31, seed=7)
    changed = [*tokens[:20], *rig.prompt(11, seed=8)]
    require_same_rows(
        rig.rows(changed)[:20], rig.rows(tokens)[:20], rig.backend, "a later token changed a row of the same prompt"
    )


@pytest.mark.level("core")
def test_step_does_not_write_its_inputs(rig: Any) -> None:
    text = rig.open(rig.prompt(9, seed=9))
    for prompt, q in ((True, 8), (False, 1)):
        record = rig.pack([(text, q)], prompt=prompt)
        bound = rig.backend.bind_inputs(record)
        before = {name: np.array(value, copy=True) for name, value in _arrays(record)}
        rig.model.forward(bound, rig.caches)
        text.done += q
        for name, value in _arrays(record):
            require(np.array_equal(value, before[name]), f"forward changed {name} of its inputs")
    rig.close(text)


def _arrays(record: Any) -> Any:
    import attrs

    for field in attrs.fields(type(record)):
        value = getattr(record, field.name)
        for key, item in value.items() if isinstance(value, dict) else [(None, value)]:
            if isinstance(item, np.ndarray):
                yield (field.name if key is None else f"{field.name}[{key}]"), item
