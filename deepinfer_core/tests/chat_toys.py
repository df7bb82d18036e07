"""A tokenizer with the control tokens of the V4.1 chat form, and an engine that says what a test wants to hear."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import evolve
from engine_toys import TOY_HINTS, ToyModel, byte_tokenizer, toy_llm
from tokenizers import AddedToken

from deepinfer_contracts import SamplerOutput
from deepinfer_core.llm import LLM
from deepinfer_core.text.tokenizer import Tokenizer

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
THINK, END = "<think>", "</think>"
DSML = "｜DSML｜"
SPECIAL = (BOS, EOS, "<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<｜latest_reminder｜>")
CONTROL = (*SPECIAL, THINK, END, DSML)
VOCAB = 300


def chat_tokenizer(*, without: Sequence[str] = (), hidden: Sequence[str] = ()) -> Tokenizer:
    """Bytes 0 to 255, two tokens of no use here, then CONTROL. ``hidden``: called special though they need not be."""
    library = byte_tokenizer()._library
    for text in CONTROL:
        if text not in without:
            library.add_tokens([AddedToken(text, special=text in SPECIAL or text in hidden, normalized=False)])
    eos = library.token_to_id(EOS)
    return Tokenizer(library, bos_id=library.token_to_id(BOS), eos_ids=frozenset({256 if eos is None else eos}))


def control_ids(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The control tokens among ``ids``, by their spelling."""
    names = {tokenizer.control_id(text): text for text in CONTROL}
    return [names[token] for token in ids if token in names]


def answer_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """An answer as the model would say it: marks are control tokens."""
    ids: list[int] = tokenizer._library.encode(text, add_special_tokens=False).ids
    return ids


class SilentModel(ToyModel):
    """A model that computes nothing: its logits are not read."""

    vocab_size = VOCAB

    def forward(self, inputs: Any, caches: Any) -> Any:
        return np.zeros((int(inputs.total_q), 2), dtype=np.uint64)

    def logits(self, hidden: Any) -> Any:
        return np.zeros((len(hidden), VOCAB), dtype=np.float32)


class ScriptSampler:
    """Says ``scripts[seed % len(scripts)]`` to a request, a token per step; no two requests may have one seed."""

    vocab_size = VOCAB

    def __init__(self, scripts: Sequence[Sequence[int]]) -> None:
        self.scripts = scripts
        self.said: dict[int, int] = {}

    def sample(self, logits: Any, inputs: Any) -> SamplerOutput:
        ids = []
        for seed in inputs.seed.tolist():
            script = self.scripts[seed % len(self.scripts)]
            position = self.said.get(seed, 0)
            self.said[seed] = position + 1
            ids.append(script[position % len(script)])
        zeros = np.zeros(len(ids), dtype=np.float32)
        return SamplerOutput(
            sampled_ids=np.array(ids, dtype=np.int32), sampled_logprob=zeros, row_status=zeros.astype(np.int8)
        )


def save_chat_tokenizer(folder: Path) -> None:
    """The same as the files of a model directory."""
    chat_tokenizer()._library.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": BOS, "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")


def chat_parts(answers: Sequence[str], tokenizer: Tokenizer) -> dict[str, Any]:
    """Parts of a toy engine that gives ``answers[seed % len(answers)]``, then the end token."""
    eos = next(iter(tokenizer.eos_ids))
    scripts = [[*answer_ids(tokenizer, text), eos] for text in answers]
    hints = evolve(TOY_HINTS, vocab_size=VOCAB, max_model_len=4096)
    return {"model": SilentModel(), "sampler": ScriptSampler(scripts), "hints": hints}


def chat_llm(*answers: str, tokenizer: Tokenizer | None = None, **settings: object) -> LLM:
    """An LLM that gives ``answers[seed % len(answers)]``, then the end token."""
    tokenizer = chat_tokenizer() if tokenizer is None else tokenizer
    return toy_llm(parts=chat_parts(answers, tokenizer), tokenizer=tokenizer, **settings)
