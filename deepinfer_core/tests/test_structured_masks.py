"""The arrays that masks are written to, and what is decided about a step before its sampler sees it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engine_toys import EOS, VOCAB, byte_tokenizer
from grammar_toys import matcher_of
from tiny_grammar import bits

from deepinfer_core.structured.lifecycle import Lifecycle
from deepinfer_core.structured.masks import SETS, MaskBuffers
from deepinfer_core.structured.progress import Progress
from deepinfer_core.structured.running import RunningGrammars


@pytest.mark.parametrize(("allowed", "width"), [(300, 320), (301, 384), (319, 320), (320, 320), (320, 384), (1, 33)])
def test_trim_clears_exactly_what_lies_beyond_the_vocabulary(allowed, width):
    buffers = MaskBuffers(1, 2, width, allowed)
    buffers.begin()
    mask = buffers.row(0, 1)
    mask[:] = -1
    assert buffers.trim(mask) is True
    assert np.array_equal(mask, bits(range(allowed), -(-width // 32)))
    mask[:] = bits(range(allowed, 32 * len(mask)), len(mask))
    assert buffers.trim(mask) is False
    assert not mask.any()


def test_dropped_request_is_in_no_list_and_the_others_stay():
    buffers = MaskBuffers(3, 8, 64, 64)
    buffers.begin()
    for request, rows in ((2, 3), (5, 2), (7, 3)):
        for j in range(rows):
            buffers.row(j, request)[:] = request
    buffers.drop(7)
    buffers.drop(6)  # it has no rows
    masks, rows = buffers.arrays(8)
    assert [row.tolist() for row in rows] == [[2, 5], [2, 5], [2]]
    assert [mask.shape for mask in masks] == [(8, 2)] * 3
    assert masks[1][5].tolist() == [5, 5]
    assert buffers.count == 5


def test_step_without_a_mask_has_no_arrays_and_unused_rows_are_absent():
    buffers = MaskBuffers(3, 4, 64, 64)
    buffers.begin()
    assert buffers.arrays(4) is None
    buffers.row(0, 1)
    masks, rows = buffers.arrays(2)
    assert (masks[1:], rows[1:]) == ([None, None], [None, None])
    assert masks[0].shape == (2, 2)


def test_masks_of_a_step_are_kept_while_those_of_the_next_are_written():
    buffers = MaskBuffers(1, 2, 64, 64)
    seen = []
    for step in range(SETS):
        buffers.begin()
        buffers.row(0, 0)[:] = step + 1
        seen.append(buffers.arrays(1)[0][0])
    assert [array.tolist() for array in seen] == [[[step + 1] * 2] for step in range(SETS)]


def running_with(schema: str, tokens: bytes = b"", **fields: Any) -> tuple[RunningGrammars, Any]:
    running = RunningGrammars(num_draft=0, max_num_seqs=4, vocab_size=VOCAB, allowed_vocab=258)
    lifecycle = Lifecycle(
        matcher_of("regex", schema),
        eos_ids=frozenset({EOS}),
        token_bytes=byte_tokenizer().token_bytes,
        depth=2,
    )
    request = SimpleNamespace(
        uid=7,
        request_id="r",
        token_ids=list(tokens),
        grammar=Progress(lifecycle, "r", frozenset({EOS}), "toy"),
        end_was_early=True,
        **fields,
    )
    running.started(request)
    return running, request


def step_of(running: RunningGrammars, suppress: list[list[int]]) -> tuple[Any, list[Any]]:
    """The inputs with masks of a decode step of requests 3 and 7, and the failures."""
    rows = SimpleNamespace(
        first_row=np.array([0, 1]),
        row_count=np.array([1, 1]),
        eos_suppress=np.array(suppress, dtype=np.int32).reshape(-1, 2),
        grammar_mask=None,
        grammar_rows=None,
    )
    failed: list[Any] = []
    record = SimpleNamespace(is_prefill=False, uids=[3, 7], num_reqs=2)
    return running.mask(record, rows, lambda request, failure: failed.append((request, failure))), failed


def test_mask_of_a_step_is_listed_under_its_request_only():
    running, _ = running_with("ab|ac", b"a")
    inputs, failed = step_of(running, [[0, EOS], [1, EOS]])
    assert failed == []
    assert inputs.grammar_rows[0].tolist() == [1]
    assert np.array_equal(inputs.grammar_mask[0][1], bits([ord("b"), ord("c")], len(inputs.grammar_mask[0][1])))
    assert inputs.eos_suppress.tolist() == [[0, EOS], [1, EOS]]


def test_end_that_is_all_the_grammar_allows_is_excluded_no_longer():
    running, _ = running_with("a", b"a")
    inputs, failed = step_of(running, [[0, EOS], [1, EOS], [1, 9]])
    assert failed == []
    assert inputs.eos_suppress.tolist() == [[0, EOS]]


def test_dead_end_is_found_before_the_sampler_sees_it():
    running, request = running_with("a", b"")
    request.grammar._lifecycle._matcher.fill = lambda mask: None
    inputs, failed = step_of(running, [])
    assert [(who.uid, failure.detail) for who, failure in failed] == [(7, "so_dead_end")]
    assert inputs.grammar_mask is None  # and the row of the request, which has ended, has no mask


def test_ended_request_has_no_masks_and_its_answer_a_flag():
    running, request = running_with("a", b"a", finish_reason="length", finish_detail="max_tokens")
    running.ended(request)
    assert (request.so_complete, request.grammar) == (True, None)
    inputs, failed = step_of(running, [])
    assert (inputs.grammar_mask, failed) == (None, [])
    assert running._by_uid == {}  # and nothing keeps the request
    running.ended(request)  # again: nothing
