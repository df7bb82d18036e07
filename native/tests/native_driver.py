"""A fake device and a follower of event streams, written plainly: what the core is compared with.

The fake model's next token is a function of all tokens before it, so a wrong history, position or order shows as a
wrong token. What lies in its caches is followed by ``device_model``. Helpers raise AssertionError and do not use
``assert``: ``python -O`` changes nothing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
from device_model import Device, require

from deepinfer_contracts import EventFlags, EventKind, FinishReason, SamplerOutput, StepKind, StepMode
from deepinfer_native import Core, CoreConfig

VOCAB = 61
EOS = 7
STOPS = (EOS, 17, 27, 37)


def small_config(**changes):
    values = {
        "block_size": 4,
        "num_blocks": 64,
        "num_swa_slots": 10,
        "num_state_slots": 10,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 32,
        "max_model_len": 96,
        "vocab_size": VOCAB,
        "window": 8,
        "ratios_sparse": (1, 2),
        "ratios_dense": (2,),
        "chunk_align": 4,
        "inputs": "InputMetadataV41",
        "validation": "full",
        "prefill_interval_all": 3,
        "prefill_interval_any": 5,
    }
    return CoreConfig(**{**values, **changes})


def next_token(history):
    """The fake model: any function of the whole history."""
    return zlib.crc32(np.asarray(history, np.int32).tobytes()) % VOCAB


@dataclass
class Request:
    uid: int
    prompt: list
    max_tokens: int
    min_tokens: int = 0
    stop: tuple = STOPS
    output: list = field(default_factory=list)
    reason: FinishReason = FinishReason.NONE
    final_index: int = -1
    prefilled: bool = False

    @property
    def history(self):
        return self.prompt + self.output


def expected_output(request, max_model_len):
    """(tokens, reason) of an undisturbed run."""
    out = []
    while True:
        history = request.prompt + out
        token = next_token(history)
        if len(out) + 1 <= request.min_tokens and token in request.stop:
            token = (token + 1) % VOCAB
            while token in request.stop:
                token = (token + 1) % VOCAB
        out.append(token)
        if len(out) > request.min_tokens and token in request.stop:
            return out, FinishReason.STOP
        if len(request.prompt) + len(out) > max_model_len or len(out) >= request.max_tokens:
            return out, FinishReason.LENGTH


class Follower:
    """Builds every request's output from events and checks the stream's own rules."""

    def __init__(self):
        self.requests = {}

    def add(self, request):
        self.requests[request.uid] = request

    def feed(self, batch):
        names = ("seq_uid", "kind", "flags", "token_id", "output_index", "finish_reason", "prompt_len")
        for uid, kind, flags, token, index, reason, prompt_len in zip(
            *(getattr(batch, n).tolist() for n in names), strict=True
        ):
            r = self.requests[uid]
            require(r.reason == FinishReason.NONE, "event after the end of", uid)
            require(prompt_len == len(r.prompt), "prompt_len of", uid)
            if kind in (EventKind.TOKEN, EventKind.PREFILLED):
                r.prefilled |= kind == EventKind.PREFILLED
                r.output.append(token)
                require(index == len(r.output), "output_index", index, "of", uid)
            else:
                require(kind == EventKind.FINISH and token == -1, "kind", kind)
                require(flags & EventFlags.LAST, "a bare event that is not the last")
                r.final_index = index
            if flags & EventFlags.LAST:
                require(reason != FinishReason.NONE, "no reason for", uid)
                r.reason = FinishReason(reason)


PACKED = ("slot_main", "positions_c", "cu_compressed_q", "slot_swa", "load_swa", "swa_pivots")


def copied(value):
    """A field as it is now: records are views over memory that later steps reuse."""
    if isinstance(value, dict):
        return {ratio: array.copy() for ratio, array in value.items()}
    return None if value is None else value.copy()


class Driver:
    """Runs a core the way an engine does, at depth 1 or 2, with or without drafts."""

    def __init__(self, config, good_drafts=2):
        self.config = config
        self.core = Core(config)
        self.follower = Follower()
        self.device = Device(config, strict=not config.stream_ordered_reuse)
        self.open = []  # (record, copies of what commit needs)
        self.drafts = {}  # uid -> drafts on the device
        self.modes = {}  # uid -> replay mode that was asked for
        self.host_drafts = {}  # uid -> drafts that came with an injected request, for its first step
        self.good_drafts = good_drafts
        self.steps = []

    # requests
    def submit(self, prompt, max_tokens=8, min_tokens=0, stop=STOPS, **more):
        uid = self.core.submit(prompt, max_tokens=max_tokens, min_tokens=min_tokens, eos_ids=stop, **more)
        request = Request(uid, list(prompt), max_tokens, min_tokens, tuple(stop))
        self.follower.add(request)
        return request

    def fork(self, parent, seed=1, max_tokens=None, at_prompt=False):
        uid = self.core.fork(parent.uid, seed=seed, max_tokens=max_tokens, at_prompt=at_prompt)
        kept = 0 if at_prompt else len(parent.output)
        request = Request(
            uid,
            parent.prompt + parent.output[:kept],
            max_tokens or parent.max_tokens - kept,
            max(0, parent.min_tokens - kept),
            parent.stop,
        )
        self.follower.add(request)
        return request

    # one step in pieces
    def schedule(self, mode=None):
        o = self.core.schedule_local() if mode is None else self.core.schedule(mode)
        if o.num_reqs:
            packed = self.check_inputs(o)
            self.device.launch(o, packed, {uid: r.history for uid, r in self.follower.requests.items()})
            first = np.concatenate([[0], np.cumsum(o.seqlens_q)]).tolist()
            rows = list(
                zip(
                    o.seq_uid.tolist(),
                    o.generation.tolist(),
                    o.seqlens_q.tolist(),
                    o.is_last_chunk.tolist(),
                    first[:-1],
                    o.remap.tolist(),
                    strict=True,
                )
            )
            self.open.append((o.step_id, o.kind, rows))
            self.steps.append((o.step_id, StepKind(o.kind), [(r[0], r[2]) for r in rows]))
        return o

    def check_inputs(self, o):
        """Tokens and positions of the packed record equal the history, for rows that do not depend on the device."""
        m = self.core.pack(o.step_id)
        at = 0
        for i, uid in enumerate(o.seq_uid.tolist()):
            q, k = int(o.seqlens_q[i]), int(o.seqlens_k[i])
            positions = m.positions[at : at + q].tolist()
            require(positions == list(range(k - q, k)), "positions of", uid)
            if o.remap[i] < 0:
                history = self.follower.requests[uid].history
                fed = m.input_ids[at : at + q].tolist()
                known = min(q, len(history) - (k - q))
                require(fed[:known] == history[k - q : k - q + known], "tokens of", uid, fed, history[k - q : k])
                if o.kind == StepKind.DECODE and q > 1:
                    pad = [VOCAB - 1] * self.config.num_draft
                    drafts = self.drafts.get(uid, pad) if o.draft_read_slot[i] else self.host_drafts.get(uid, pad)
                    require(fed[1:] == drafts[: q - 1], "drafts of", uid, fed, drafts)
            at += q
        if self.config.inputs == "InputMetadata":
            return None
        return {name: copied(getattr(m, name)) for name in PACKED}

    def drafts_of(self, uid):
        """What the next decode step of a request verifies."""
        return self.drafts.get(uid) or self.host_drafts.get(uid) or [VOCAB - 1] * self.config.num_draft

    def sample(self, kind, rows):
        """What the device's sampler returns for a step, given everything that was committed before it."""
        n, k = len(rows), self.config.num_draft
        total = sum(r[2] for r in rows)
        sampled, accepted = np.zeros(n, np.int32), np.zeros(n, np.int32)
        verified = np.full(total, -1, np.int32)
        draft_ids = np.full((n, k), VOCAB - 1, np.int32)
        for i, (uid, _, q, is_last, first, _) in enumerate(rows):
            request = self.follower.requests[uid]
            history = list(request.history)
            if kind == StepKind.PREFILL and not is_last:
                continue
            drafts = self.drafts_of(uid)
            token = self.token(request, history)
            for j in range(q - 1 if kind == StepKind.DECODE else 0):
                if drafts[j] != token:
                    break
                verified[first + j] = token
                accepted[i] += 1
                history.append(token)
                token = self.token(request, history)
            sampled[i] = token
            history.append(token)
            guess = []
            for j in range(k):
                right = self.token(request, history + guess)
                guess.append(right if j < (len(history) + uid) % (self.good_drafts + 1) else (right + 1) % VOCAB)
            draft_ids[i] = guess
            self.drafts[uid] = guess
        out = SamplerOutput(
            sampled_ids=sampled,
            sampled_logprob=np.full(n, -0.5, np.float32),
            row_status=np.zeros(n, np.int8),
        )
        if k:
            out.draft_ids = draft_ids
            if kind == StepKind.DECODE:
                out.verified_ids, out.accepted = verified, accepted
        return out

    @staticmethod
    def token(request, history):
        token = next_token(history)
        if len(history) - len(request.prompt) + 1 <= request.min_tokens:
            while token in request.stop:
                token = (token + 1) % VOCAB
        return token

    def commit(self):
        step, kind, rows = self.open.pop(0)
        launched = self.device.execute(step, self.drafts_of)
        out = self.sample(kind, rows)
        batch = self.core.commit(step, out)
        verified = None if out.verified_ids is None else out.verified_ids.tolist()
        self.device.finish(launched, out.sampled_ids.tolist(), verified)
        require(batch.step_id == step, "step of the batch")
        self.follower.feed(batch)
        return batch

    def done(self, step):
        self.core.step_done(step)
        self.device.complete(step)

    def poll(self):
        self.follower.feed(self.core.poll_events())

    def retire(self):
        """Commit the oldest open step and report it done."""
        step = self.open[0][0]
        self.commit()
        self.done(step)

    def step(self):
        """One engine call in the order of ``spec/engine.md`` 5.2. Returns the schedule record."""
        o = self.schedule()
        if not o.num_reqs:
            while self.open:
                self.retire()
            self.poll()
            return o
        while len(self.open) > 1:
            self.retire()
        if self.config.depth == 1 or o.kind == StepKind.PREFILL:
            self.core.pack_sampler(o.step_id)
            self.retire()
        else:
            self.core.pack_sampler(o.step_id)
        return o

    def run(self, limit=5000, check=False):
        """Until everything has ended."""
        for _ in range(limit):
            if not self.core.unfinished:
                break
            self.step()
            if check:
                self.core.check()
        while self.open:
            self.retire()
        self.poll()
        require(self.core.unfinished == 0, "unfinished after", limit, "steps")
        self.core.check()
        self.core.audit()
        return self

    def require_expected(self, requests=None):
        for r in requests or self.follower.requests.values():
            tokens, reason = expected_output(r, self.config.max_model_len)
            require(r.output == tokens, "tokens of", r.uid, r.output, tokens)
            require(r.reason == reason, "reason of", r.uid, r.reason, reason)


def drive_to(driver, request, phase_steps):
    """Step until the request has taken part in ``phase_steps`` steps."""
    for _ in range(200):
        if sum(request.uid in [u for u, _ in rows] for _, _, rows in driver.steps) >= phase_steps:
            return
        driver.step()
    raise AssertionError("the request never ran")


__all__ = ["EOS", "VOCAB", "Device", "Driver", "Follower", "Request", "StepMode", "drive_to", "expected_output"]
