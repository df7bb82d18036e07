"""The requests of a point: prompts from a seed, and when they arrive."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence

from attrs import frozen

from deepinfer_core import SamplingParams
from deepinfer_core.bounded_file import read_bounded_text
from deepinfer_core.errors import DeepInferError, InvalidInputFile

FIRST_ID = 3
"""Ids below are control tokens of the released tokenizer."""


@frozen
class Shape:
    """One point: requests, tokens of each prompt, and draft tokens of a step."""

    batch: int
    prompt_tokens: int
    draft_tokens: int

    @property
    def name(self) -> str:
        return f"b{self.batch}-p{self.prompt_tokens}-k{self.draft_tokens}"


@frozen
class Prompts:
    """Makes the prompts of a round, cut from a text or of random ids.

    :param ids: Those that a prompt may have.
    :param text: Ids of a text; empty: there is none.
    """

    ids: Sequence[int]
    seed: int
    text: tuple[int, ...] = ()

    def make(self, shape: Shape, round_name: str) -> list[list[int]]:
        """``shape.batch`` prompts that differ in every round, so that no prefix is shared and no cache is warm."""
        draw = random.Random(f"{self.seed} {shape.name} {round_name}")
        length = shape.prompt_tokens
        if self.text:
            starts = [draw.randrange(len(self.text) - length + 1) for _ in range(shape.batch)]
            return [list(self.text[start : start + length]) for start in starts]
        return [draw.choices(self.ids, k=length) for _ in range(shape.batch)]

    @property
    def source(self) -> str:
        return f"cut from a text of {len(self.text)} tokens" if self.text else "random token ids"


def readable_ids(vocab_size: int, check_prompt: Callable[[tuple[int, ...]], object] | None) -> Sequence[int]:
    """Ids of the vocabulary that are no control tokens, and that the model does not refuse (``Model.check_prompt``)."""
    ids = range(min(FIRST_ID, vocab_size - 1), vocab_size)
    if check_prompt is None:
        return ids
    return [one for one in ids if _reads(check_prompt, one)]


def _reads(check_prompt: Callable[[tuple[int, ...]], object], one: int) -> bool:
    try:
        check_prompt((one,))
    except DeepInferError:
        return False
    return True


def read_text(path: str) -> str:
    """A text file, read before any weight is. Raises InvalidInputFile."""
    try:
        return read_bounded_text(path)
    except (OSError, ValueError) as err:
        reason = err.strerror if isinstance(err, OSError) and err.strerror else str(err)
        raise InvalidInputFile(f"cannot read the text {path}", reason=reason, remedy="check --text") from err


def text_ids(text: str, encode: Callable[[str], Sequence[int]], longest: int) -> tuple[int, ...]:
    """The ids of a text. Raises InvalidInputFile where they are fewer than a prompt has."""
    ids = tuple(encode(text))
    if len(ids) < longest:
        raise InvalidInputFile(
            f"the text has {len(ids)} tokens, and a prompt {longest}",
            reason="prompts are cut from the text",
            remedy="give a longer text, or shorter prompts",
            details={"tokens": len(ids), "prompt_tokens": longest},
        )
    return ids


def greedy(tokens: int) -> SamplingParams:
    """Every answer has ``tokens`` tokens: the end token is ignored."""
    return SamplingParams(max_tokens=tokens, temperature=0.0, ignore_eos=True)


def digest(prompts: Sequence[Sequence[int]]) -> str:
    """SHA-256 of the prompts, so that two runs can show that they had the same ones."""
    return hashlib.sha256(repr([list(p) for p in prompts]).encode()).hexdigest()


def arrivals(shape: Shape, tokens: int) -> list[dict[str, int]]:
    """The arrival trace: all requests at once, before the first step."""
    one = {"at_step": 0, "prompt_tokens": shape.prompt_tokens, "max_tokens": tokens}
    return [{"request": i, **one} for i in range(shape.batch)]
