"""Requests through the native scheduler and packer, step by step, with made-up tokens in place of a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from attrs import define, field

from deepinfer_contracts import ReplayMode, SamplerOutput, StepKind
from deepinfer_core.errors import EngineError
from deepinfer_native import Core, CoreConfig
from deepinfer_verify.replay.contents import Chain, Values
from deepinfer_verify.replay.rule import Geometry, Mode, Prompt

VOCAB = 997
FORKS = 500
"""Tokens from here on begin what a prompt has of its own behind a shared beginning."""
MOST_STEPS = 100_000
Visit = Callable[[Any, Any, "dict[int, Request]"], None]
"""Called with the step record and its inputs, before the step is committed."""


@define
class Request:
    """One that is in the core."""

    case: str
    prompt: Prompt
    """What the rule says of it: mode, and where it starts."""
    tokens: list[int] = field(repr=False)
    """Prompt and what was decoded."""
    is_admitted: bool = False
    _chain: Chain = field(factory=Chain, init=False, repr=False)

    def values(self, drafts: Sequence[int] = ()) -> Values:
        """What stands for each position in caches that sequences may share."""
        return self._chain.of(self.tokens, drafts)


class CoreRun:
    """A native core of these sizes. ``engine``: the mode that it packs for; a request may have it or one before it."""

    def __init__(self, geometry: Geometry, engine: Mode, *, chunk: int, drafts: int, longest: int) -> None:
        self.geometry = geometry
        self.drafts = drafts
        sequences = 3
        blocks = (longest + 3 * drafts + 8) // geometry.block + 2
        replay: dict[str, Any] = {} if engine == "off" else {"replay_mode": engine, "replay_keep": geometry.keep}
        if geometry.exact is not None:
            whole, kept = geometry.exact
            replay |= {"replay_exact": True, "replay_len": whole, "replay_len_kept": kept}
        self.config = CoreConfig(
            block_size=geometry.block,
            num_blocks=8 * sequences * blocks,
            num_swa_slots=sequences + 2,
            num_state_slots=sequences + 2,
            max_num_seqs=sequences,
            max_num_batched_tokens=max(longest, geometry.block, sequences * (drafts + 1)),
            max_model_len=longest + 8,
            vocab_size=VOCAB,
            max_chunk=min(chunk, longest),
            chunk_align=1,
            num_draft=drafts,
            window=geometry.window,
            backtrack=geometry.ring - geometry.window,
            swa_ring=geometry.ring,
            ratios_sparse=geometry.ratios,
            ratios_dense=geometry.ratios[-1:],
            inputs="InputMetadataV41",
            validation="full",
            prefix_cache=True,
            **replay,
        )
        self._core = Core(self.config)
        self._open: dict[int, Request] = {}
        self._chance = random.Random(1)

    def submit(self, request: Request, *, lookup: bool) -> None:
        """Queue it. ``lookup``: whether it may find blocks of earlier ones."""
        mode = ReplayMode[request.prompt.mode.upper()]
        uid = self._core.submit(request.tokens, max_tokens=5, prefix_lookup=lookup, replay_mode=int(mode))
        self._open[uid] = request

    def run(self, visit: Visit) -> None:
        """Until every request has ended."""
        for _ in range(MOST_STEPS):
            if not self._core.unfinished:
                break
            step = self._core.schedule_local()
            if not step.num_reqs:
                self._core.poll_events()
                continue
            inputs = self._core.pack(step.step_id)
            visit(step, inputs, self._open)
            self._core.pack_sampler(step.step_id)
            self._core.commit(step.step_id, self._output(step, inputs))
            self._core.step_done(step.step_id)
        else:
            raise EngineError(
                "requests do not end",
                reason=f"{self._core.unfinished} are left after {MOST_STEPS:,} steps",
                remedy="report it: the scheduler must end every request",
            )
        self._core.poll_events()
        self._open.clear()

    def close(self) -> None:
        self._core.close()

    def _output(self, step: Any, inputs: Any) -> SamplerOutput:
        """Any tokens; of each row's drafts any number is accepted, so that ring and keys are rolled back."""
        count, first = int(step.num_reqs), 0
        is_decode = step.kind == StepKind.DECODE
        sampled = np.zeros(count, np.int32)
        accepted = np.zeros(count, np.int32)
        verified = np.full(int(sum(step.seqlens_q)), -1, np.int32)
        drafts = np.zeros((count, self.drafts), np.int32)
        for i, uid in enumerate(step.seq_uid.tolist()):
            request, rows = self._open[uid], int(step.seqlens_q[i])
            if is_decode or step.is_last_chunk[i]:
                taken = self._chance.randrange(rows) if is_decode else 0
                if taken:
                    verified[first : first + taken] = inputs.input_ids[first + 1 : first + 1 + taken]
                accepted[i] = taken
                sampled[i] = self._chance.randrange(VOCAB)
                request.tokens += [*verified[first : first + taken].tolist(), int(sampled[i])]
                drafts[i] = [self._chance.randrange(VOCAB) for _ in range(self.drafts)]
            first += rows
        out = SamplerOutput(
            sampled_ids=sampled,
            sampled_logprob=np.full(count, -0.5, np.float32),
            row_status=np.zeros(count, np.int8),
        )
        if self.drafts:
            out.draft_ids = drafts
            if is_decode:
                out.verified_ids, out.accepted = verified, accepted
        return out


def tokens_of(length: int, seed: int) -> list[int]:
    """Made-up tokens, all below ``FORKS``."""
    chance = random.Random(seed)
    return [chance.randrange(FORKS) for _ in range(length)]


def fork(shared: int, length: int, seed: int, prefix: Sequence[int]) -> list[int]:
    """``prefix`` up to ``shared``, then tokens of its own: no other seed goes on with the first of them."""
    if shared >= length:
        return list(prefix[:length])
    return [*prefix[:shared], FORKS + seed % (VOCAB - FORKS), *tokens_of(length - shared - 1, seed)]
