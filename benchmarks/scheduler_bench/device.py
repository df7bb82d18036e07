"""What a sampler would return for a step, made before the clock starts. Two answers for each shape take turns, as two
staging buffers would; ids never end a request."""

from __future__ import annotations

from typing import Any

import numpy as np

from deepinfer_contracts import SamplerOutput, StepKind

EOS = 2  # the one stop id of every request


class Answers:
    """Sampler outputs by shape: ``drafts`` proposed for each row, at most ``accepted`` of them verified as right."""

    def __init__(self, vocab_size: int, drafts: int, accepted: int, confidences: bool = False) -> None:
        self._vocab_size, self._drafts, self._accepted = vocab_size, drafts, accepted
        self._confidences = confidences
        self._rng = np.random.default_rng(11)
        self._made: dict[tuple[int, int], list[SamplerOutput]] = {}
        self._turn = 0

    def answer(self, step: Any) -> SamplerOutput:
        """For a SchedulerOutputs. Not in the timed region."""
        self._turn ^= 1
        n, is_decode = int(step.num_reqs), step.kind == StepKind.DECODE
        if self._drafts and is_decode and int(step.num_batched_tokens) != n * (self._drafts + 1):
            return self._make(n, step.seqlens_q)  # lengths vary: every step has its own shape
        key = (n, int(is_decode))
        if key not in self._made:
            lengths = np.full(n, self._drafts + 1, np.int32) if is_decode else None
            self._made[key] = [self._make(n, lengths) for _ in range(2)]
        return self._made[key][self._turn]

    def _ids(self, *shape: int) -> Any:
        return self._rng.integers(EOS + 1, self._vocab_size, shape, dtype=np.int32)

    def _make(self, n: int, lengths: Any) -> SamplerOutput:
        """``lengths``: rows of each request of a decode step, None for a prefill step."""
        out = SamplerOutput(
            sampled_ids=self._ids(n),
            sampled_logprob=np.full(n, -0.5, np.float32),
            row_status=np.zeros(n, np.int8),
        )
        if not self._drafts:
            return out
        out.draft_ids = self._ids(n, self._drafts)
        if self._confidences:
            out.confidence = self._rng.uniform(0.3, 0.95, (n, self._drafts)).astype(np.float32)
        if lengths is None:
            return out
        accepted = np.minimum(self._accepted, lengths - 1).astype(np.int32)
        local = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        out.verified_ids = np.where(local < np.repeat(accepted, lengths), self._ids(local.size), np.int32(-1))
        out.accepted = accepted
        return out


class Recorder:
    """Answers of another device, kept in their order."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.made: list[SamplerOutput] = []

    def answer(self, step: Any) -> SamplerOutput:
        self.made.append(self._answers.answer(step))
        return self.made[-1]


class Recorded:
    """Answers made before, to the same steps. Each is copied into one of two sets of buffers in turn, as a device does
    with its results; an array of the length that it had in that set the time before is the same array."""

    def __init__(self, made: list[SamplerOutput]) -> None:
        self._made = iter(made)
        self._shown: list[dict[str, Any]] = [{}, {}]
        arrays = [(name, getattr(o, name)) for o in made for name in SamplerOutput.FIELDS]
        present = [(name, a) for name, a in arrays if isinstance(a, np.ndarray)]
        longest: dict[str, int] = {}
        for name, a in present:
            longest[name] = max(longest.get(name, 0), len(a))
        self._buffers = [
            {name: np.empty((longest[name], *a.shape[1:]), a.dtype) for name, a in dict(present).items()}
            for _ in self._shown
        ]

    def answer(self, step: Any) -> SamplerOutput:
        """For a SchedulerOutputs. Not in the timed region."""
        result = next(self._made)
        if len(result.sampled_ids) != step.num_reqs:
            raise ValueError(f"step {step.step_id} has {step.num_reqs} requests, its answer {len(result.sampled_ids)}")
        self._shown.reverse()
        self._buffers.reverse()
        shown, out = self._shown[0], SamplerOutput()
        for name, buffer in self._buffers[0].items():
            array = getattr(result, name)
            if array is None:
                continue
            if name not in shown or len(shown[name]) != len(array):
                shown[name] = buffer[: len(array)]
            shown[name][...] = array
            setattr(out, name, shown[name])
        return out
