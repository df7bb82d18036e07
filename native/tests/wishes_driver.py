"""An engine whose requests ask for penalties, biases, alternatives and prompt log-probabilities.

Every packed record is compared with the plain reference, and what the events say with what the sampler was asked for.
Its made-up log-probabilities are functions of token and position, so a value that lands at the wrong place shows.
"""

from __future__ import annotations

import numpy as np
from device_model import require
from native_driver import Driver

from deepinfer_contracts import EventFlags, EventKind, StepKind
from deepinfer_native.reference_sampler import SampledRow, SamplerFields, Wishes


def prompt_logprob(token, position):
    return -(1 + token + position / 128)


def options_of(wishes):
    return {
        "frequency_penalty": 0.5 if wishes.is_penalised else 0.0,
        "bias": wishes.bias,
        "top_logprobs": wishes.top_logprobs,
        "logprobs_raw": wishes.logprobs_raw,
        "prompt_logprobs": wishes.prompt_logprobs,
        "prefix_lookup": not wishes.prompt_logprobs,
    }


class WishesDriver(Driver):
    def __init__(self, config, **more):
        super().__init__(config, **more)
        self.wishes = {}
        self.fields = SamplerFields()
        self.prompts = {}  # uid -> log-probabilities that came with an event
        self.asked = []  # of the open steps: (prompt rows, tokens, positions)
        self.with_history = 0

    def ask(self, prompt, wishes, **more):
        request = self.submit(prompt, **options_of(wishes), **more)
        self.wishes[request.uid] = wishes
        return request

    def fork(self, parent, **more):
        child = super().fork(parent, **more)
        w = self.wishes[parent.uid]
        self.wishes[child.uid] = Wishes(w.is_penalised, w.bias, w.top_logprobs, w.logprobs_raw)
        return child

    def rows_of(self, o):
        rows, first = [], 0
        for i, uid in enumerate(o.seq_uid.tolist()):
            request, q, k = self.follower.requests[uid], int(o.seqlens_q[i]), int(o.seqlens_k[i])
            rows.append(
                SampledRow(
                    uid,
                    int(o.generation[i]),
                    int(o.row_slot[i]),
                    list(request.history),
                    len(request.prompt),
                    k - q,
                    q,
                    first,
                    bool(o.is_last_chunk[i]),
                    self.wishes[uid],
                )
            )
            first += q
        return rows

    def pack_sampler(self, o):
        """Pack and compare. Tokens are as of now: nothing of a request that gets its history is in flight."""
        rows, is_prefill = self.rows_of(o), o.kind == StepKind.PREFILL
        inputs = self.core.pack_sampler(o.step_id)
        for name, want in self.fields.pack(rows, is_prefill).items():
            got = getattr(inputs, name)
            if want is None or isinstance(want, int):
                require(got == want, name, "is", got, "and not", want)
            else:
                require(got is not None, name, "is absent")
                require(got.dtype == want.dtype and got.tolist() == want.tolist(), name, got, want)
        inputs.validate(self.core.limits, 2, step=o)
        self.with_history += inputs.history_counts is not None
        return inputs

    def sample(self, kind, rows):
        out = super().sample(kind, rows)
        inputs = self.asked.pop(0)
        if inputs["prompt"] is not None:
            out.prompt_logprobs = inputs["prompt"]
        if inputs["top"]:
            n, m = len(rows), inputs["top"]
            out.top_ids = np.tile(np.arange(m, dtype=np.int32), (n, 1))
            out.top_logprobs = -out.top_ids.astype(np.float32)
        return out

    def note(self, o, inputs):
        """What the sampler will answer to a record that lives until the next one."""
        prompt = None
        if inputs.prompt_tokens is not None:
            first = np.concatenate([[0], np.cumsum(o.seqlens_q)])
            starts = o.seqlens_k - o.seqlens_q
            values = []
            for row, token in zip(inputs.selected_prompt_rows.tolist(), inputs.prompt_tokens.tolist(), strict=True):
                i = int(np.searchsorted(first, row, "right")) - 1
                values.append(prompt_logprob(token, int(starts[i]) + row - int(first[i]) + 1))
            prompt = np.asarray(values, np.float32)
        self.asked.append({"prompt": prompt, "top": inputs.max_top_logprobs})

    def commit(self):
        batch = super().commit()
        offsets, values = batch.prompt_lp_offset.tolist(), batch.prompt_logprobs
        for uid, kind, index, at, n, flags in zip(
            batch.seq_uid.tolist(),
            batch.kind.tolist(),
            batch.output_index.tolist(),
            offsets,
            batch.prompt_len.tolist(),
            batch.flags.tolist(),
            strict=True,
        ):
            if at < 0:
                continue
            require(kind != EventKind.FINISH and index == 1, "prompt logprobs of a later event", uid)
            require(uid not in self.prompts and not flags & EventFlags.FROM_DRAFT, "told twice", uid)
            self.prompts[uid] = values[at : at + n].tolist()
            self.fields.told.add(uid)
        return batch

    def step(self):
        o = self.schedule()
        if not o.num_reqs:
            while self.open:
                self.retire()
            self.poll()
            return o
        while len(self.open) > 1:
            self.retire()
        self.note(o, self.pack_sampler(o))
        if self.config.depth == 1 or o.kind == StepKind.PREFILL:
            self.retire()
        return o

    def require_prompts(self):
        """Every prompt whose log-probabilities were asked for has them, in order; the first token has none."""
        for uid, wishes in self.wishes.items():
            request = self.follower.requests[uid]
            if not wishes.prompt_logprobs or not request.output:
                require(uid not in self.prompts, "nobody asked for the prompt of", uid)
                continue
            want = [0.0] + [prompt_logprob(t, p) for p, t in enumerate(request.prompt) if p]
            np.testing.assert_allclose(self.prompts[uid], want, rtol=1e-6)
