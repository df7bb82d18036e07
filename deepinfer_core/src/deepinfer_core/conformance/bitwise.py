"""Equality of bytes (class B of ``spec/kernels.md`` 1.4), and of the rows of one call with those of another."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from deepinfer_core.conformance.failures import fail, require


def byte_rows(x: Tensor) -> Tensor:
    """The bytes of each element, uint8 ``[elements, itemsize]`` on the host."""
    host = x.detach().cpu().contiguous()
    return host.view(-1).view(torch.uint8).view(host.numel(), host.element_size())


def require_same_bytes(got: Tensor, expected: Tensor, what: str, **facts: object) -> None:
    """Fail unless shape, dtype and every byte are equal; the message names the first element that differs."""
    __tracebackhide__ = True
    require(got.shape == expected.shape, f"{what}: the shape is wrong", **facts,
            got=list(got.shape), expected=list(expected.shape))  # fmt: skip
    require(got.dtype == expected.dtype, f"{what}: the dtype is wrong", **facts, got=got.dtype, expected=expected.dtype)
    wrong = (byte_rows(got) != byte_rows(expected)).any(1)
    if wrong.any():
        first = int(wrong.int().argmax())
        index = [int(i) for i in torch.unravel_index(torch.tensor(first), got.shape)] if got.dim() else []
        fail(
            f"{what}: {int(wrong.sum())} of {wrong.numel()} elements differ",
            **facts,
            worst=index,
            got=got.detach().cpu().flatten()[first].item(),
            expected=expected.detach().cpu().flatten()[first].item(),
            limit="every byte equal (class B)",
        )


def row_choices(g: torch.Generator, tokens: int) -> Iterator[tuple[str, Tensor]]:
    """Which of ``tokens`` rows to run together: alone, in seven other batches, permuted, padded, in two chunks."""
    for row in {0, tokens // 2, tokens - 1}:
        yield f"row {row} alone", torch.tensor([row])
    for size in (2, 3, 5, 7, 8, max(tokens - 1, 1), tokens):
        yield f"{size} random rows", torch.randint(0, tokens, (size,), generator=g)
    order = torch.randperm(tokens, generator=g)
    yield "all rows permuted", order
    yield "all rows and more of the last", torch.cat([torch.arange(tokens), torch.full((9,), tokens - 1)])
    cut = max(tokens // 3, 1)
    yield "the first chunk", torch.arange(cut)
    if cut < tokens:
        yield "the second chunk", torch.arange(cut, tokens)


def require_row_invariant(
    op: str, run: Callable[[Tensor], Tensor], tokens: int, g: torch.Generator, **facts: object
) -> None:
    """Fail unless a row's bytes do not depend on the rows beside it (``spec/kernels.md`` 5.2).

    :param run: Row numbers ``[n]`` -> the results of exactly these rows, ``[n, ...]``.
    """
    __tracebackhide__ = True
    together = run(torch.arange(tokens))
    for name, rows in row_choices(g, tokens):
        expected = together[rows.to(together.device)]
        require_same_bytes(run(rows), expected, f"{op} is not batch invariant", op=op, case=name, **facts)
