"""Bounded replay (``spec/model.md`` 5.3): rows that the decoder half leaves out are missed by nobody.

For models with the hint ``encoder_layers``. Rings and states that nobody owns are full of poison, so a window that
reaches in front of the kept rows is another result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from deepinfer_core.conformance.model.closeness import require_same_rows
from deepinfer_core.types import REPLAY_MODES

pytestmark = pytest.mark.level("core")


@pytest.fixture
def keep(rig: Any) -> int:
    if not rig.hints.encoder_layers:
        pytest.skip("it runs every row of a prompt in every layer")
    return int(rig.hints.window + rig.hints.backtrack)


def kept_rows(rig: Any, length: int, keep: int, mode: Any, *, inputs: Any = None, chunk: int = 10**9) -> Any:
    """Logits of the last ``keep`` rows of a prompt, and of four decode steps behind it."""
    tokens = rig.prompt(length + 4, seed=length)
    text = rig.open(tokens)
    text.replay_mode = mode
    text.keep_from = max(0, length - keep) if mode != "off" else 0
    rig.replay_inputs = inputs or mode
    try:
        prompt = np.concatenate(rig.prefill(text, length, chunk))[max(0, length - keep) :]
        return np.concatenate([prompt, *rig.decode(text, len(tokens))])
    finally:
        rig.replay_inputs = "off"
        rig.close(text)


@pytest.mark.parametrize("chunk", [10**9, 7, "block"])
def test_rows_that_are_left_out_change_none_that_is_kept(rig: Any, keep: int, chunk: Any) -> None:
    """``compact`` in any chunks is ``mask`` in one."""
    length = min(rig.max_len - 8, keep + 2 * rig.block_size + 5)
    want = kept_rows(rig, length, keep, "mask")
    got = kept_rows(rig, length, keep, "compact", chunk=rig.block_size if chunk == "block" else chunk)
    require_same_rows(got, want, rig.backend, "rows that the decoder half keeps depend on those that it leaves out")


def test_prompt_that_is_kept_whole_is_the_same_in_every_mode(rig: Any, keep: int) -> None:
    want = kept_rows(rig, keep, keep, "off")
    for mode in REPLAY_MODES[1:]:
        got = kept_rows(rig, keep, keep, mode, chunk=5)
        require_same_rows(got, want, rig.backend, "a mode changes a prompt of which it keeps every row", mode=mode)


def test_request_of_mode_off_runs_every_row_beside_the_others(rig: Any, keep: int) -> None:
    length = min(rig.max_len - 8, keep + rig.block_size + 3)
    want = kept_rows(rig, length, keep, "off")
    got = kept_rows(rig, length, keep, "off", inputs="compact", chunk=9)
    require_same_rows(got, want, rig.backend, "a request of mode off has other rows in inputs of mode compact")
