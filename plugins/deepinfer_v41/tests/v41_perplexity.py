"""Perplexity of the golden text: rows of 511 tokens, each after one BOS, scored independently."""

from __future__ import annotations

import functools
import math

import torch
from tokenizers import Tokenizer
from v41_models import GOLDEN, SHIPPED, Variant, shipped

ROW = 511


@functools.cache
def rows() -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(SHIPPED / "tokenizer.json"))
    ids = tokenizer.encode((GOLDEN / "ppl.txt").read_text(encoding="utf-8"), add_special_tokens=False).ids
    return [[0, *ids[i : i + ROW]] for i in range(0, len(ids), ROW)]


def row_nll(variant: Variant, batch: list[list[int]], on: str = "cpu") -> list[float]:
    """Mean negative log likelihood of each row, all rows in one prefill step."""
    driver = shipped(variant, on)
    sequences = [driver.open(ids) for ids in batch]
    hidden = driver.run([(s, len(s.tokens)) for s in sequences], prompt=True)
    out, at = [], 0
    for s in sequences:
        n = len(s.tokens)
        logprobs = driver.model.logits(hidden[at : at + n - 1]).log_softmax(-1)
        out.append(-float(logprobs.gather(1, torch.tensor(s.tokens[1:], device=logprobs.device)[:, None]).mean()))
        at += n
    driver.close(*sequences)
    return out


def weighted(nll: list[float], lengths: list[int]) -> float:
    return math.exp(sum(x * n for x, n in zip(nll, lengths, strict=True)) / sum(lengths))


def first_tokens(variant: Variant, count: int, on: str = "cpu") -> float:
    """Perplexity of the first ``count`` tokens of the text."""
    whole, left = divmod(count, ROW)
    nll = [x for i in range(0, whole, 8) for x in row_nll(variant, rows()[i : min(i + 8, whole)], on)]
    nll.append(row_nll(variant, [rows()[whole][: left + 1]], on)[0])
    return weighted(nll, [ROW] * whole + [left])
