"""Engram's hash: from the last N compressed token ids to table rows, one per n-gram order and head (spec/model.md 2.3).

For position p, ``t_k`` is the compressed id of token p-k (the pad's before the start and from a dead token on):
``h_0 = t_0 m_0``, ``h_k = h_{k-1} xor t_k m_k``; row of order k+1 and head j = offset + (h_k mod prime). The
multipliers are odd and small enough that no product exceeds int64.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import numpy.typing as npt

from deepinfer_core.errors import ModelConfigError, TokenizerError
from deepinfer_v41.config import V41Config
from deepinfer_v41.engram_map import compress_vocabulary, count_tokens, read_tokenizer
from deepinfer_v41.primes import engram_primes

Int64 = npt.NDArray[np.int64]

_SEED_STEP = 10007
"""The multipliers of layer l come from PCG64 seeded with 10007 l."""


@attrs.frozen(eq=False)
class EngramTables:
    """Constants of all Engram layers, in the order of ``engram_layer_ids``. Arrays are read-only."""

    token_map: npt.NDArray[np.int32]
    """``[n_tokens]``: compressed id of each token id the tokenizer has (at most vocab_size)."""
    compressed_size: int
    pad_id: int
    """Compressed id that stands before the first token."""
    primes: Int64
    """``[layers, columns]``: bucket counts; columns are n-gram order major (2..N), head minor."""
    offsets: Int64
    """``[layers, columns]``: first row of each column in its layer's table."""
    multipliers: Int64
    """``[layers, N]``."""

    @classmethod
    def build(cls, config: V41Config, tokenizer_path: Path | str | None) -> EngramTables:
        """Derive all constants; ``tokenizer_path`` names ``tokenizer.json`` and may be None for an identity map.

        Raises TokenizerError when the tokenizer is missing or unreadable, and ModelConfigError when the number of
        compressed tokens is not ``engram_compressed_vocab_size``.
        """
        path = None if tokenizer_path is None else Path(tokenizer_path)
        token_map = _token_map(config, path)
        n_layers, columns = len(config.engram_layer_ids), config.engram_columns
        primes = np.array(engram_primes(config.engram_vocab_size, n_layers, columns), dtype=np.int64)
        primes = primes.reshape(n_layers, columns)
        _check_rows(config, primes)
        size = config.engram_compressed_vocab_size
        order = config.engram_max_ngram_size
        multipliers = [hash_multipliers(layer, order, size) for layer in config.engram_layer_ids]
        pad = config.engram_pad_token_id
        tables = cls(
            token_map=token_map,
            compressed_size=size,
            pad_id=int(token_map[pad]) if pad < len(token_map) else 0,
            primes=primes,
            offsets=np.cumsum(primes, axis=1) - primes,
            multipliers=np.array(multipliers, dtype=np.int64).reshape(n_layers, order),
        )
        for array in (tables.token_map, tables.primes, tables.offsets, tables.multipliers):
            array.setflags(write=False)
        return tables

    def windows(self, token_ids: Sequence[int], *, dead: Sequence[bool] | None = None) -> npt.NDArray[np.int32]:
        """``[T, N]`` compressed ids of a whole sequence from its first token: column k looks k tokens back.

        :param dead: Positions inside an image span: they and everything older count as pad.
        """
        order = self.multipliers.shape[1]
        compressed = self.token_map[np.asarray(token_ids, dtype=np.int64)]
        out = np.full((len(compressed), order), self.pad_id, dtype=np.int32)
        blocked = np.zeros(len(compressed), dtype=bool)
        is_dead = np.zeros(len(compressed), dtype=bool) if dead is None else np.asarray(dead, dtype=bool)
        for back in range(min(order, len(compressed))):
            n_rows = len(compressed) - back
            blocked[back:] |= is_dead[:n_rows]
            out[back:, back] = np.where(blocked[back:], self.pad_id, compressed[:n_rows])
        return out

    def hash_rows(self, ngram_ids: npt.NDArray[np.integer]) -> Int64:
        """``[T, N]`` compressed ids (column k looks k tokens back) -> ``[layers, T, columns]`` table rows."""
        ids = np.asarray(ngram_ids, dtype=np.int64)
        order = self.multipliers.shape[1]
        heads = self.primes.shape[1] // (order - 1)
        # [layers, T, N] products; the running xor over the last axis is h_0 .. h_{N-1}.
        mixed = np.bitwise_xor.accumulate(ids[None] * self.multipliers[:, None], axis=2)
        return np.repeat(mixed[:, :, 1:], heads, axis=2) % self.primes[:, None] + self.offsets[:, None]


def hash_multipliers(layer: int, order: int, compressed_size: int) -> Int64:
    """``[order]`` odd int64 of one layer, each times a compressed id below 2**63."""
    bound = max(1, (np.iinfo(np.int64).max // compressed_size) // 2)
    return np.random.default_rng(_SEED_STEP * layer).integers(0, bound, size=order, dtype=np.int64) * 2 + 1


def _token_map(config: V41Config, path: Path | None) -> npt.NDArray[np.int32]:
    uses_tokenizer = config.engram_layer_ids and config.engram_token_map == "tokenizer"
    if path is None:
        if uses_tokenizer:
            raise TokenizerError(
                "the model has Engram layers but no tokenizer.json",
                reason="their compressed vocabulary is derived from the tokenizer",
                remedy="put the tokenizer.json of the checkpoint beside its config.json",
            )
        return np.arange(config.vocab_size, dtype=np.int32)
    tokenizer = read_tokenizer(path)
    n_tokens = min(count_tokens(tokenizer), config.vocab_size)
    if not uses_tokenizer:
        return np.arange(n_tokens, dtype=np.int32)
    token_map = compress_vocabulary(tokenizer, n_tokens)
    n_classes = int(token_map.max(initial=-1)) + 1
    if n_classes != config.engram_compressed_vocab_size:
        raise ModelConfigError(
            f"model configuration: engram_compressed_vocab_size is {config.engram_compressed_vocab_size}, "
            f"but the {n_tokens} tokens of {path.name} form {n_classes} classes",
            reason="the Engram hash depends on this number: with another one every table row would be wrong",
            remedy="use config.json and tokenizer.json of the same checkpoint",
            details={"field": "engram_compressed_vocab_size", "classes": n_classes},
        )
    if config.engram_pad_token_id >= n_tokens:
        raise ModelConfigError(
            f"model configuration: engram_pad_token_id is {config.engram_pad_token_id}",
            reason=f"{path.name} has {n_tokens} tokens",
            remedy="use config.json and tokenizer.json of the same checkpoint",
            details={"field": "engram_pad_token_id", "tokens": n_tokens},
        )
    return token_map


def _check_rows(config: V41Config, primes: Int64) -> None:
    """The tables must have a row for every bucket (checked again here: a configuration may be evolved in code)."""
    rows = [int(total) for total in primes.sum(axis=1)]
    if rows != list(config.engram_num_embeddings):
        raise ModelConfigError(
            f"model configuration: engram_num_embeddings is {list(config.engram_num_embeddings)}",
            reason=f"the bucket primes from engram_vocab_size ({config.engram_vocab_size}) sum to {rows}",
            remedy="correct engram_num_embeddings or engram_vocab_size in the model's config.json",
            details={"field": "engram_num_embeddings", "expected": rows},
        )
