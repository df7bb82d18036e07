"""Which entries a row attends to (``spec/model.md`` 2.7, 7.3 to 7.7, 7.10; random tiny models)."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from dense_reference import DenseReference
from torch import Tensor
from v41_recording import Recorder
from v41_tiny import edited, prompt, tiny_driver, tiny_path, tiny_recorded
from v41_tracing import block_mask, visible

IDS = prompt(120, seed=2)
LAYERS = {2: 2, 4: 2, 6: 1, 8: 1, 10: 1}
"""Index source -> its ratio."""


@functools.cache
def recorded() -> tuple[Any, Recorder]:
    return tiny_recorded(tiny_path())


@functools.cache
def selections(**how: Any) -> dict[str, Tensor]:
    driver, recorder = recorded()
    recorder.clear()
    driver.all_logits(IDS, **how)
    return recorder.selections()


HOW = [{}, {"chunk": 7}, {"split": 90}, {"split": 30, "q": 4}]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_selection_is_ascending_visible_and_complete(how):
    found = selections(**how)
    for layer, ratio in LAYERS.items():
        chosen = found[f"topk.{layer}"]
        for p, row in enumerate(chosen.tolist()):
            kept = [e for e in row if e >= 0]
            visible = (p + 1) // ratio
            assert kept == sorted(set(kept))
            assert row[len(kept) :] == [-1] * (len(row) - len(kept))
            assert all(e < visible for e in kept)
            # 4 blocks of 8 candidates hold at least 16 entries wherever there are that many
            assert len(kept) == min(16, visible)


def test_entry_of_two_tokens_is_visible_from_its_second_token_on():
    found = selections()
    assert found["topk.2"][0].tolist() == [-1] * 16
    for p in range(30):
        assert ((p - 1) // 2 in found["topk.2"][p].tolist()) == (p % 2 == 1) or p >= 32 or p % 2 == 0
        assert max(found["topk.2"][p].tolist()) == (p - 1) // 2 if p else True
    assert all(p in found["topk.6"][p].tolist() for p in range(16))


@pytest.mark.parametrize("how", HOW, ids=str)
def test_newest_candidate_block_is_always_kept_and_later_indexers_stay_inside(how):
    found = selections(**how)
    blocks = found["candidates.6"]
    for p, row in enumerate(blocks.tolist()):
        kept = [b for b in row if b >= 0]
        assert p // 8 in kept
        assert kept == sorted(set(kept))
        assert len(kept) == min(4, p // 8 + 1)
    allowed = block_mask(blocks, 8, 120)
    for layer in (8, 10):
        chosen = found[f"topk.{layer}"]
        for p in range(120):
            assert all(bool(allowed[p, e]) for e in chosen[p].tolist() if e >= 0)


@pytest.mark.parametrize("ratio", [1, 2])
def test_candidates_and_selections_equal_a_brute_force_for_every_length(ratio):
    """Row p of one run is a sequence of length p + 1; the oracle scores every entry and block."""
    ratios = [0, 0, 2, 2, 2, 2, *[ratio] * 6, 0, 0, 0]
    path = tiny_path(compress_ratios=ratios, candidate_topk_blocks=2, index_topk=8)
    driver, recorder = tiny_recorded(path)
    ids = prompt(64, seed=31)
    driver.all_logits(ids)
    found, want = recorder.selections(), DenseReference(path, caches=False).run(ids)
    entries = 64 // ratio
    seen = visible(64, ratio)
    assert torch.equal(block_mask(found["candidates.6"], 8, entries) & seen, want.candidates[6] & seen)
    for layer in (6, 8, 10):
        assert torch.equal(found[f"topk.{layer}"].long(), want.topk[layer])


def test_candidates_do_nothing_while_all_blocks_fit():
    with_blocks = tiny_driver(tiny_path()).all_logits(IDS)
    without = tiny_driver(tiny_path(candidate_source_layer_id="null")).all_logits(IDS)
    torch.testing.assert_close(with_blocks[:32], without[:32], atol=1e-5, rtol=0)
    assert float((with_blocks[40:] - without[40:]).abs().max()) > 1e-3


def test_selecting_all_entries_is_dense_attention():
    sparse = tiny_driver(tiny_path()).all_logits(IDS)
    dense = tiny_driver(tiny_path(index_topk=128, candidate_topk_blocks=16)).all_logits(IDS)
    torch.testing.assert_close(sparse[:16], dense[:16], atol=1e-5, rtol=0)
    assert float((sparse[40:] - dense[40:]).abs().max()) > 1e-3
    constant = edited(
        tiny_path(index_topk=128, candidate_topk_blocks=16),
        lambda t: {n: torch.zeros_like(w) for n, w in t.items() if n.endswith("indexer.weights_proj.weight")},
    )
    torch.testing.assert_close(tiny_driver(constant).all_logits(IDS), dense, atol=1e-5, rtol=0)


@pytest.mark.parametrize("how", HOW, ids=str)
def test_equal_scores_select_the_lowest_entries_everywhere(how):
    path = edited(
        tiny_path(),
        lambda t: {n: torch.zeros_like(w) for n, w in t.items() if n.endswith("indexer.weights_proj.weight")},
    )
    driver, recorder = tiny_recorded(path)
    driver.all_logits(IDS, **how)
    found = recorder.selections()
    for layer in (2, 4, 6):
        for p in range(120):
            count = min(16, (p + 1) // LAYERS[layer])
            assert found[f"topk.{layer}"][p].tolist() == [*range(count), *[-1] * (16 - count)]
    newest = found["candidates.6"].amax(1).tolist()
    assert newest == [p // 8 for p in range(120)]


def test_reindex_weights_do_not_touch_earlier_layers():
    def edit(t: dict[str, Tensor]) -> dict[str, Tensor]:
        name = "layers.8.attn.indexer.weights_proj.weight"
        return {name: -t[name]}

    driver, recorder = tiny_recorded(tiny_path())
    driver.all_logits(IDS)
    changed_driver, changed = tiny_recorded(edited(tiny_path(), edit))
    changed_driver.all_logits(IDS)
    before, after = recorder.stream_norms(), changed.stream_norms()
    assert torch.equal(before[:9], after[:9])
    assert not torch.equal(recorder.selections()["topk.8"], changed.selections()["topk.8"])
    assert torch.equal(recorder.selections()["topk.6"], changed.selections()["topk.6"])
    assert not torch.allclose(before[9], after[9])


def test_reuse_layers_attend_to_the_selection_of_the_nearest_source():
    """Layer 7 reuses layer 6, layers 9 and 11 reuse 8 and 10: the attention op gets the very same entries."""
    rows: list[Tensor] = []

    def note(f: Any) -> Any:
        def op(q: Tensor, keys: Tensor, index: Tensor, **options: Any) -> Any:
            rows.append(index)
            return f(q, keys, index, **options)

        return op

    driver, _ = tiny_recorded(tiny_path(), extra={"attn.sparse_prefill": note})
    driver.all_logits(IDS)
    assert len(rows) == 12
    for reuse, source in ((3, 2), (5, 4), (7, 6), (9, 8), (11, 10)):
        assert torch.equal(rows[reuse], rows[source])
    assert not torch.equal(rows[8], rows[6])
    assert not torch.equal(rows[10], rows[8])


@pytest.mark.parametrize("how", [*HOW[1:], {"chunk": 3}, {"split": 64, "q": 1}], ids=str)
def test_selections_are_the_same_however_the_sequence_is_cut(how):
    want, got = selections(), selections(**how)
    for label, rows in want.items():
        assert torch.equal(rows, got[label]), label


@pytest.mark.parametrize("how", [*HOW[1:], {"chunk": 3}], ids=str)
def test_a_preferred_entry_is_selected_at_every_later_position(how):
    """Entry 2 gets a score that nothing else reaches; it must be found in caches and state whatever the cut."""

    def prefer(f: Any) -> Any:
        def op(*args: Any, **kw: Any) -> Tensor:
            scores = f(*args, **kw)
            if scores.shape[1] > 2:
                scores[:, 2] = torch.where(torch.isinf(scores[:, 2]), scores[:, 2], 1e6)
            return scores

        return op

    driver, recorder = tiny_recorded(tiny_path(), extra={"index.logits": prefer})
    want = driver.all_logits(IDS)
    recorder.clear()
    got = driver.all_logits(IDS, **how)
    for layer, ratio in LAYERS.items():
        chosen = recorder.selections()[f"topk.{layer}"]
        assert all(2 in row for row in chosen[3 * ratio - 1 :].tolist())
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
