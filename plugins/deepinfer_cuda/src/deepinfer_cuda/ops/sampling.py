"""The sampler's steps on the device (``spec/sampling.md`` 2.2, 2.4, 2.5), a block of threads a row."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from deepinfer_core.errors import ShapeContractError
from deepinfer_cuda.tl.sampling.best import best as best_kernel
from deepinfer_cuda.tl.sampling.choose import ALL, DRAW, NO_LIMIT, NOISE
from deepinfer_cuda.tl.sampling.choose import choose as choose_kernel
from deepinfer_cuda.tl.sampling.draw import draw as draw_kernel
from deepinfer_cuda.tl.sampling.mask import mask as mask_kernel

GREEDY_BELOW = 1e-5
THREADS, MANY_THREADS = 512, 1024
"""Threads of a block: two blocks share a multiprocessor, or one has it."""
MULTIPROCESSORS = 132
MOST_PARTS, PART_WIDTH = 8, 8192
"""Blocks a row at most, and columns that a block is worth its while for."""
MAX_WIDTH = 1 << 18
"""Ids have 18 bits in a token's place in the order of its row, and the mass of a wider row passes 63 bits."""


def mask(logits: Tensor, bitmask: Tensor, reqs: Tensor, first_row: Tensor, step: int) -> Tensor:
    """-inf, in place, for tokens whose bit is 0, on row ``first_row[r] + step`` of each listed request.

    :param logits: f32 ``[R, V]``.
    :param bitmask: int32 ``[n, ceil(V / 32)]``, bit t % 32 of word t // 32; row i belongs to request ``reqs[i]``.
    :param first_row: int32 ``[N + 1]``, rows of request r are ``[first_row[r], first_row[r + 1])``; a step past them is
        ignored.
    :raises ShapeContractError: a shape or dtype does not fit.
    """
    if logits.dim() != 2 or bitmask.dim() != 2 or bitmask.dtype != torch.int32:
        got = (list(logits.shape), list(bitmask.shape), bitmask.dtype)
        raise _misfit("sample.mask", "logits, bitmask", "[R, V] and int32 [n, words]", got)
    width = logits.shape[1]
    if bitmask.shape != (reqs.shape[0], -(-width // 32)):
        raise _misfit("sample.mask", "bitmask", [reqs.shape[0], -(-width // 32)], list(bitmask.shape))
    _check_rows("sample.mask", "logits", logits)
    if bitmask.shape[0] and width:
        mask_kernel(width=width)(logits, bitmask.contiguous(), reqs.int(), first_row.int(), step)
    return logits


def best(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The highest logit of each row of f32 ``[R, V]``, the lowest id among equals, the first NaN where there is one.

    :returns: int64 ids and f32 logits, ``[R]``.
    :raises ShapeContractError: ``logits`` is not such a matrix, or has more than 262,144 columns.
    """
    _check_rows("sample.best", "logits", logits)
    ids = torch.empty(len(logits), dtype=torch.int64, device=logits.device)
    peaks = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    if len(logits):
        best_kernel(width=logits.shape[1], vector=_vector(logits))(logits, ids, peaks)
    return ids, peaks


def choose(logits: Tensor, peaks: Tensor, params: Any, keys: Tensor, *, coupled: bool = False) -> tuple[Tensor, Tensor]:
    """A token of each row from what min-p, top-p and top-k leave, and its log-probability there.

    :param logits: f32 ``[R, V]`` without NaN or +inf, at least one finite in each row.
    :param peaks: f32 ``[R]``, the highest logit of each row.
    :param params: has ``temperature`` f32 (at least 1e-5), ``min_p`` f32 (None or 0: off), ``top_p`` int64
        (``floor(top_p * 2**31)``) and ``top_k`` int64 (1 to V), all ``[R]``.
    :param keys: int64 ``[R]``, the bits of the draws' numbers, or of the noise with ``coupled``.
    :returns: int64 and f32 ``[R]``.
    :raises ShapeContractError: a shape or dtype does not fit.
    """
    rows = len(logits)
    _check_rows("sample.choose", "logits", logits)
    least = torch.zeros_like(peaks) if params.min_p is None else params.min_p
    given = {"peaks": peaks, "temperature": params.temperature, "min_p": least}
    given |= {"top_p": params.top_p, "top_k": params.top_k, "keys": keys}
    for name, value in given.items():
        if value.shape != (rows,):
            raise _misfit("sample.choose", name, [rows], list(value.shape))
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows:
        threads, parts = _blocks(rows, logits.shape[1])
        launch = choose_kernel(
            width=logits.shape[1],
            vector=_vector(logits),
            result=NOISE if coupled else DRAW,
            threads=threads,
            parts=parts,
        )
        launch(logits, peaks, params.temperature, least, params.top_p, params.top_k, keys, tokens, logprobs)
    return tokens, logprobs


def logprobs(logits: Tensor, params: Any) -> Tensor:
    """Temperature, min-p, top-p, top-k and renormalisation of f32 ``[R, V]``; dropped tokens get -inf.

    ``params`` has ``temperature``, ``top_p``, ``top_k`` (-1 off) and ``min_p`` as tensors ``[R]`` (min_p may be None).
    Rows with a temperature below 1e-5 keep their best token only. Equal logits rank by lower id.

    :raises ShapeContractError: a shape or dtype does not fit.
    """
    rows, width = _check_rows("sample.logprobs", "logits", logits)
    if params.temperature.shape != (rows,):
        raise _misfit("sample.logprobs", "params", f"[{rows}] each", list(params.temperature.shape))
    out = torch.empty((rows, width), dtype=torch.float32, device=logits.device)
    if not rows:
        return out
    ids, peaks = best(logits)
    greedy = params.temperature < GREEDY_BELOW
    off = (params.top_k < 1) | (params.top_k > width)
    launch = choose_kernel(width=width, vector=_vector(logits), result=ALL, threads=THREADS, parts=1)
    launch(
        logits,
        peaks,
        params.temperature.float().masked_fill(greedy, 1.0),
        torch.zeros_like(peaks) if params.min_p is None else params.min_p.float(),
        (params.top_p.double() * NO_LIMIT).long().clamp(max=NO_LIMIT),
        params.top_k.long().masked_fill(off, width).masked_fill(greedy, 1),
        ids,  # no draw, no key
        ids,
        out,
    )
    return out


def draw(logprobs: Tensor, seeds: Tensor, positions: Tensor, *, case: int = 0) -> Tensor:
    """The canonical integer draw: int32 ``[R]``, the same on every backend for equal probabilities.

    :param logprobs: f32 ``[R, V]``; NaN and -inf are never drawn. A row without weight gives its most probable token.
    :param seeds: 64-bit patterns ``[R]`` (int64 or uint64); ``positions`` absolute index of the token drawn ``[R]``.
    :raises ShapeContractError: a shape or dtype does not fit.
    """
    rows, width = _check_rows("sample.draw", "logprobs", logprobs)
    if seeds.numel() != rows or positions.numel() != rows:
        got = (list(logprobs.shape), list(seeds.shape), list(positions.shape))
        raise _misfit("sample.draw", "logprobs, seeds, positions", "[R, V], [R] and [R]", got)
    tokens = torch.empty(rows, dtype=torch.int32, device=logprobs.device)
    if rows:
        bits = seeds.reshape(-1)
        bits = bits.view(torch.int64) if bits.dtype == torch.uint64 else bits.long()
        launch = draw_kernel(width=width, vector=_vector(logprobs))
        launch(logprobs, bits, positions.reshape(-1).long(), case, tokens)
    return tokens


OPS = {
    "sample.mask": mask,
    "sample.best": best,
    "sample.choose": choose,
    "sample.logprobs": logprobs,
    "sample.draw": draw,
}


def _check_rows(op: str, name: str, rows: Tensor) -> tuple[int, int]:
    """Rows and columns of an f32 matrix whose rows are contiguous."""
    if rows.dim() != 2 or rows.dtype != torch.float32 or (rows.stride(1) != 1 and rows.shape[1] > 1):
        raise _misfit(op, name, "f32 [R, V], rows contiguous", (rows.dtype, list(rows.shape), rows.stride()))
    if not 0 < rows.shape[1] <= MAX_WIDTH:
        raise _misfit(op, name, f"of 1 to {MAX_WIDTH} columns", rows.shape[1])
    return rows.shape[0], rows.shape[1]


def _blocks(rows: int, width: int) -> tuple[int, int]:
    """Threads of a block and blocks a row: few rows have several each. A row's result does not depend on it."""
    parts = MOST_PARTS
    while parts > 1 and (rows * parts > MULTIPROCESSORS or width < parts * PART_WIDTH):
        parts //= 2
    return (THREADS if rows > MULTIPROCESSORS else MANY_THREADS), parts


def _vector(rows: Tensor) -> int:
    """Values that can be read at once: four where each row begins at a multiple of 16 bytes."""
    aligned = rows.data_ptr() % 16 == 0 and rows.stride(0) % 4 == 0 and rows.shape[1] % 4 == 0
    return 4 if aligned else 1


def _misfit(op: str, argument: str, expected: object, got: object) -> ShapeContractError:
    return ShapeContractError(
        f"{op}: argument '{argument}' must be {expected}, got {got}",
        reason="the caller and the op disagree on a shape, dtype or option",
        remedy="this is a fault of the sampler plugin or of the engine, please report it",
        details={"op": op, "argument": argument, "expected": str(expected), "got": str(got)},
    )
