"""The part of ``SamplerInputs`` that only some requests ask for, written plainly (``spec/engine.md`` 6.5).

The slow version that the C packer is compared to: biases, alternatives, the histories that penalties count from, and
the rows of prompt log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, field

from deepinfer_native.reference_pack import i32

Fields = dict[str, npt.NDArray[np.generic] | int | None]


@define
class Wishes:
    """What one request asks of the sampler beyond its parameters. ``is_penalised``: with a frequency penalty of 0.5."""

    is_penalised: bool = False
    bias: Sequence[tuple[int, float]] = ()
    top_logprobs: int = 0
    logprobs_raw: bool = False
    prompt_logprobs: bool = False


@define
class SampledRow:
    """One request of a step, which runs positions ``[start, start + q)`` of ``tokens``.

    ``tokens``: the committed ones. ``first``: row of the first position in the model's output.
    """

    uid: int
    generation: int
    row_slot: int
    tokens: Sequence[int]
    prompt_len: int
    start: int
    q: int
    first: int
    is_last_chunk: bool
    wishes: Wishes


@define
class SamplerFields:
    """Makes the fields step by step, in order: it knows whom the sampler has counted since its last admission.

    A new life of a request (``generation``) starts its history again; one that got a prompt's log-probabilities out is
    in ``told``, which the caller adds to.
    """

    counted: set[tuple[int, int]] = field(factory=set)
    told: set[int] = field(factory=set)

    def pack(self, rows: Sequence[SampledRow], is_prefill: bool) -> Fields:
        """``{field: array, or None where it is absent}``."""
        out: Fields = {"row_slot": i32([r.row_slot - 1 for r in rows])}
        # What is sampled behind a chunk that does not end its prompt is dropped: nothing is counted for it.
        is_counted = [r.wishes.is_penalised and (r.is_last_chunk or not is_prefill) for r in rows]
        out["frequency_penalty"] = np.asarray([0.5 if counted else 0 for counted in is_counted], np.float32)
        self._histories(rows, is_prefill, out)
        self._biases(rows, is_prefill, out)
        tops = [r.wishes.top_logprobs for r in rows]
        out["max_top_logprobs"] = max(tops)
        out["top_logprobs"] = i32(tops) if any(tops) else None
        raw = [r.wishes.logprobs_raw for r in rows]
        out["logprobs_raw"] = np.asarray(raw, np.uint8) if any(raw) else None
        self._prompts(rows, is_prefill, out)
        return out

    def _histories(self, rows: Sequence[SampledRow], is_prefill: bool, out: Fields) -> None:
        histories = []
        for r in rows:
            life = (r.uid, r.generation)
            is_due = r.wishes.is_penalised and life not in self.counted and (r.is_last_chunk or not is_prefill)
            if is_due:
                self.counted.add(life)
            histories.append(list(r.tokens) if is_due else [])
        counts = [len(h) for h in histories]
        outputs = [n - r.prompt_len if n else 0 for n, r in zip(counts, rows, strict=True)]
        is_present = any(counts)
        out["history_ids"] = i32([token for h in histories for token in h]) if is_present else None
        out["history_counts"] = i32(counts) if is_present else None
        out["history_outputs"] = i32(outputs) if is_present else None

    @staticmethod
    def _biases(rows: Sequence[SampledRow], is_prefill: bool, out: Fields) -> None:
        entries = [
            (row, token, value)
            for i, r in enumerate(rows)
            for row in ([i] if is_prefill else range(r.first, r.first + r.q))
            for token, value in r.wishes.bias
        ]
        out["bias"] = i32([entry[:2] for entry in entries]) if entries else None
        out["bias_value"] = np.asarray([entry[2] for entry in entries], np.float32) if entries else None

    def _prompts(self, rows: Sequence[SampledRow], is_prefill: bool, out: Fields) -> None:
        """Position p gives the log-probability of prompt token p + 1; the first token has none."""
        selected, tokens, counts = [], [], []
        for r in rows:
            is_asked = is_prefill and r.wishes.prompt_logprobs and r.uid not in self.told
            positions = [p for p in range(r.start, r.start + r.q) if is_asked and p + 1 < r.prompt_len]
            selected += [r.first + p - r.start for p in positions]
            tokens += [r.tokens[p + 1] for p in positions]
            counts.append(len(positions))
        out["selected_prompt_rows"] = i32(selected) if selected else None
        out["prompt_tokens"] = i32(tokens) if selected else None
        out["prompt_counts"] = i32(counts) if selected else None
