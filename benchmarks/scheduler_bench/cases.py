"""What is measured: scenarios (a) to (g) of ``spec/engine.md`` 11.4 as data."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from attrs import fields

from deepinfer_native import CoreConfig

VOCAB = 129_280
BLOCK = 128
SETTINGS = frozenset(a.name for a in fields(CoreConfig))


@dataclass(frozen=True)
class Case:
    """One workload. ``seqs`` requests are kept alive; ``prompt`` and ``output`` in tokens; ``load`` names the pattern.

    ``pool``: blocks as a share of what all requests need at their longest. ``shared``: prefix tokens that ``share`` of
    the prompts have in common. ``needs``: CoreConfig fields without which the case cannot run.
    """

    name: str
    group: str
    seqs: int
    load: str = "steady"  # steady, churn, closed, storm
    draft: int = 0
    accepted: int = 0
    prompt: int = 512
    output: int = 0  # 0: longer than the run
    steps: int = 400
    warmup: int = 50
    runs: int = 5
    pool: float = 1.0
    shared: int = 0
    share: float = 0.0
    inputs: str = "v41"  # common, v41, v41+ngram
    validation: str = "boundary"
    varlen: bool = False
    interval: int = 70  # decode steps between two attempts at a prefill step
    burst: int = 0  # prefill steps in a row while somebody decodes, 0 = any number
    watermark: float = 1.0  # 1.0: nothing but the pool itself keeps prompts out
    prefix_cache: bool = False
    needs: tuple[str, ...] = ()

    @property
    def missing(self) -> str:
        """Why this build cannot run the case; empty if it can."""
        absent = [name for name in self.needs if name not in SETTINGS]
        return f"CoreConfig has no {', '.join(absent)}" if absent else ""

    @property
    def longest_output(self) -> int:
        return self.output or (self.steps + self.warmup + 16) * (1 + self.accepted)

    @property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return self.longest_prompt + self.longest_output

    @property
    def longest_prompt(self) -> int:
        if self.load == "churn":
            return 16 * self.prompt
        return self.shared + self.prompt if self.shared else self.prompt

    def config(self) -> CoreConfig:
        """A core of the V4.1 shape for this case, two steps deep."""
        q = self.draft + 1
        slots = int(1.2 * self.seqs) + 9
        blocks_each = -(-(self.longest + 3 * q) // BLOCK) + 1
        wanted = self.seqs * blocks_each
        if self.load == "churn":  # prompts are log-normal: their mean, not the longest
            wanted = self.seqs * (-(-(2 * self.prompt + self.longest_output) // BLOCK) + 2) + 2 * blocks_each
        settings: dict[str, Any] = {
            "num_blocks": max(int(wanted * self.pool), blocks_each) + 3,
            "max_num_batched_tokens": max(16_384, self.seqs * q),
            "max_model_len": self.longest,
            "vocab_size": VOCAB,
            "block_size": BLOCK,
            "num_swa_slots": slots,
            "num_state_slots": slots,
            "max_num_seqs": self.seqs,
            "num_draft": self.draft,
            "depth": 2,
            "validation": self.validation,
            "prefill_watermark": self.watermark,
            "max_prefill_burst": self.burst,
            "prefill_interval_all": self.interval,
            "prefill_interval_any": max(100, self.interval),
            "window": 128,
        }
        if self.inputs != "common":
            settings |= {"inputs": "InputMetadataV41", "ratios_sparse": (1, 2)}
        if self.inputs.endswith("ngram"):
            settings |= {"ngram": 4, "ngram_table": np.arange(VOCAB, dtype=np.int32)}
        if "csr_tables" in SETTINGS:
            settings["csr_tables"] = False
        if self.varlen:
            settings["verify_lengths"] = "confidence"
        if self.prefix_cache:
            settings |= {"prefix_cache": True, "prefix_key": bytes(range(16))}
        return CoreConfig(**settings)


def decode_cases() -> list[Case]:
    """(a) Pure decode, and K = 5 with 3 tokens a step."""
    return [
        Case(f"decode-{n}-k{k}", "decode", n, draft=k, accepted=a, steps=400, runs=5)
        for k, a in ((0, 0), (5, 2))
        for n in (1, 4, 16, 64, 256, 1024, 4096)
    ]


def other_cases() -> list[Case]:
    """(b) to (g), and what each input record and each validation level costs."""
    long = [Case(f"context-{n >> 10}k", "context", 64, prompt=n) for n in (4096, 32768, 131072)]
    inputs = [Case(f"inputs-{kind}", "inputs", 256, inputs=kind) for kind in ("common", "v41", "v41+ngram")]
    pressure = Case("pressure-256", "pressure", 256, load="closed", prompt=512, output=512)
    prefix = Case("prefix-on", "prefix", 64, load="closed", prompt=256, output=64, shared=8192, share=0.8)
    return [
        Case("churn-256", "churn", 256, load="churn", output=512, steps=1000, warmup=100),
        Case("churn-256-k5", "churn", 256, load="churn", draft=5, accepted=2, output=512, steps=1000, warmup=100),
        *long,
        replace(pressure, pool=0.6, interval=8, steps=1000, warmup=600),
        replace(prefix, prefix_cache=True, needs=("prefix_cache",)),
        replace(prefix, name="prefix-off"),
        Case("storm-256", "storm", 256, load="storm", prompt=128, interval=4, burst=1),
        *[
            Case(f"varlen-{n}", "varlen", n, draft=5, accepted=2, varlen=True, needs=("verify_lengths",))
            for n in (256, 1024)
        ],
        *inputs,
        *[
            Case(f"validate-{level}-k{k}", "validation", 256, draft=k, accepted=a, validation=level)
            for k, a in ((0, 0), (5, 2))
            for level in ("off", "boundary", "full")
        ],
    ]


def smoke(cases: list[Case]) -> list[Case]:
    """The same patterns, so small that all of them take seconds; for tests, the figures mean nothing."""
    kept = [
        c for c in cases if (c.group != "decode" or c.seqs in (1, 4)) and (c.group != "context" or c.prompt == 4096)
    ]
    return [
        replace(
            c,
            seqs=min(c.seqs, 8),
            prompt=min(c.prompt, 160),
            shared=min(c.shared, 512),
            output=min(c.output, 24),
            steps=30,
            warmup=5,
            runs=2,
        )
        for c in kept
    ]
