"""The model on a device that refuses to wait (``far_device`` of ``deepinfer-cpu``): a step only launches, and gives
what it gives on the host."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from v41_driver import Driver
from v41_models import SHIPPED, Variant, make_driver, manifest, shipped

sys.path.insert(0, str(Path(__file__).parents[2] / "deepinfer_cpu" / "tests"))

from far_device import FAR, launching

from deepinfer_contracts import InputMetadataV41, ReplayMode
from deepinfer_cpu.backend import CpuBackend
from deepinfer_native.reference_pack import pack_decode

PROMPTS = {p["id"]: p["ids"] for p in manifest()["prompts"]}


def far_driver(variant: Variant, draft_tokens: int = 0) -> Driver:
    """The shipped checkpoint on the device; ``forward`` may not wait, nor bring anything there."""
    driver = make_driver(SHIPPED, variant, backend=CpuBackend().on(FAR), draft_tokens=draft_tokens)
    for name in ("forward", "logits"):
        setattr(driver.model, name, launched(getattr(driver.model, name)))
    return driver


def launched(call: Any) -> Any:
    def only(*args: Any) -> Any:
        with launching():
            return call(*args)

    return only


@pytest.mark.parametrize("variant", ["released", pytest.param("kvq", marks=pytest.mark.slow)])
def test_steps_only_launch_and_give_what_the_host_gives(variant: Variant) -> None:
    """A prefill of two chunks, then decode steps of three rows and of one."""
    ids, driver = PROMPTS["len33"], far_driver(variant)
    got = driver.all_logits(ids, chunk=17, split=26, q=3)
    torch.testing.assert_close(got, shipped(variant).all_logits(ids, chunk=17, split=26, q=3), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", [ReplayMode.MASK, ReplayMode.COMPACT])
def test_bounded_replay_only_launches_and_gives_what_the_host_gives(mode: ReplayMode) -> None:
    ids, got = PROMPTS["len33"] * 3, []
    for driver in (far_driver("kvq"), make_driver(SHIPPED, "kvq")):
        driver.replay_inputs = mode
        sequence = driver.open(ids)
        sequence.replay_mode, sequence.keep_from = mode, len(ids) - 44
        rows = driver.prefill(sequence, len(ids) - 1, 30)[-1][-1:]
        got.append(driver.model.logits(torch.cat([rows, *driver.decode(sequence, len(ids))])).cpu())
    torch.testing.assert_close(got[0], got[1], rtol=1e-4, atol=1e-4)


def test_drafts_only_launch_and_are_those_of_the_host() -> None:
    ids, proposals = PROMPTS["len33"], []
    for driver in (far_driver("kvq", 3), make_driver(SHIPPED, "kvq", draft_tokens=3)):
        sequence = driver.open(ids)
        driver.prefill(sequence, len(ids), 64)
        proposals.append(driver.draft([16]))
    assert torch.equal(proposals[0].tokens, proposals[1].tokens)
    torch.testing.assert_close(proposals[0].confidences, proposals[1].confidences, rtol=1e-5, atol=1e-6)


def test_placeholder_rows_of_a_step_change_no_real_one() -> None:
    """A step that was made for more rows than it has: the others store nothing and go to no expert."""
    driver, ids = far_driver("kvq"), PROMPTS["len33"]
    sequence = driver.open(ids)
    driver.run([(sequence, 31)], prompt=True)
    sent: list[int] = []
    dispatch = driver.model._blocks[0]._moe._moe.dispatch

    def note(x: Any, index: Any, weight: Any) -> Any:
        out = dispatch(x, index, weight)
        sent.append(out.expert)
        return out

    alone = driver.run([(sequence, 1)], prompt=False).cpu()
    sequence.done -= 1
    fields = pack_decode([sequence.row(1, driver.geometry)], driver.geometry)
    fields["block_tables"] = np.asarray([sequence.block_table], dtype=np.int32)
    driver.model._blocks[0]._moe._moe.dispatch = note
    inputs = driver.backend.bind_inputs(InputMetadataV41(**padded(fields, 3)))
    hidden = driver.model.forward(inputs, driver.caches).cpu()
    driver.model._blocks[0]._moe._moe.dispatch = dispatch
    torch.testing.assert_close(hidden[:1], alone, rtol=1e-5, atol=1e-5)
    per_row = driver.model.config.num_experts_per_tok
    assert sent
    assert all(int((experts.cpu() < 1 << 31).sum()) == per_row for experts in sent)


def padded(fields: dict[str, Any], more: int) -> dict[str, Any]:
    """The fields of a decode step of one row with ``more`` placeholders behind it."""
    special = {"slot_swa": -1, "slot_main": -1, "context_lens": 1, "klen": 1, "query_indices": 998244353}

    def longer(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {key: longer(name, part) for key, part in value.items()}
        if not isinstance(value, np.ndarray) or value.ndim == 0 or len(value) != 1:
            return value
        filling = np.full((more, *value.shape[1:]), special.get(name, 0), dtype=value.dtype)
        return np.concatenate([value, filling])

    per_request = ("seqlens_q", "seqlens_k", "cu_seqlens_q_incl", "fresh_ids", "ngram_win")
    return {name: value if name in per_request else longer(name, value) for name, value in fields.items()}
