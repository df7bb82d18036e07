"""Wrong forms of what backend ``ascend`` gives to a vendor's kernel, and how they are put there."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor

Call = dict[str, Any]
Change = Callable[[list[Any], Call], None]
"""Changes positional and keyword arguments in place."""


@contextlib.contextmanager
def _changed(symbol: str, change: Change) -> Iterator[None]:
    from deepinfer_ascend import vendor

    sound = vendor.symbol

    def found(name: str, of: Any) -> Callable[..., Any]:
        call = sound(name, of)
        if name != symbol:
            return call

        def faulty(*args: Any, **options: Any) -> Any:
            given = list(args)
            change(given, options)
            return call(*given, **options)

        return faulty

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vendor, "symbol", found)
        yield


@contextlib.contextmanager
def _replaced(module: str, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    holder = importlib.import_module(f"deepinfer_ascend.{module}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, make(getattr(holder, name)))
        yield


def changed(symbol: str, change: Change) -> Callable[[], AbstractContextManager[object]]:
    return lambda: _changed(symbol, change)


def replaced(module: str, name: str, make: Callable[[Any], Any]) -> Callable[[], AbstractContextManager[object]]:
    return lambda: _replaced(module, name, make)


def argument(place: int, make: Callable[[Any], Any]) -> Change:
    """Positional argument ``place`` becomes ``make`` of it."""

    def change(args: list[Any], options: Call) -> None:
        args[place] = make(args[place])

    return change


def option(name: str, make: Callable[[Any], Any]) -> Change:
    def change(args: list[Any], options: Call) -> None:
        options[name] = make(options.get(name))

    return change


def data(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Of a pair (data, scale words)."""
    return lambda pair: (make(pair[0]), pair[1])


def words(make: Callable[[Tensor], Any]) -> Callable[[Any], Any]:
    return lambda pair: (pair[0], make(pair[1]))


def row_major(x: Tensor) -> Tensor:
    return x.contiguous()


def column_major(x: Tensor) -> Tensor:
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def halves_swapped(x: Tensor) -> Tensor:
    """The lower group in the high byte of a word."""
    swapped = column_major(x).transpose(-1, -2).view(torch.uint8).unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    return swapped.contiguous().view(torch.int16).transpose(-1, -2)


def of_the_next_span(x: Tensor) -> Tensor:
    return column_major(x.roll(1, -1))


def a_power_more(x: Tensor) -> Tensor:
    """In the low byte alone."""
    return column_major(x + 1)


def four_a_word(x: Tensor) -> Tensor:
    """int32, as on NVIDIA's devices."""
    return column_major(x.int())


def padded_columns(x: Tensor) -> Tensor:
    """Rows to a multiple of four, as NVIDIA's TMA wants them."""
    held = x.new_zeros(x.shape[-1], -(-x.shape[-2] // 4) * 4 + 4)
    held[:, : x.shape[-2]] = x.transpose(-1, -2)
    return held.transpose(-1, -2)[: x.shape[-2]]


def in_nd(x: Any) -> Tensor:
    from deepinfer_ascend.fractal import from_fractals

    return from_fractals(x)


def of_the_transpose(x: Any) -> Any:
    """The bytes of the transposed matrix under the shape that is expected."""
    from deepinfer_ascend.fractal import from_fractals, to_fractals

    plain = from_fractals(x)
    return to_fractals(plain.transpose(-1, -2).contiguous().view(plain.shape))


def nibbles_swapped(x: Any) -> Any:
    """The even value of FP4 in the high half."""
    from deepinfer_ascend.fractal import from_fractals, to_fractals

    plain = from_fractals(x)
    return to_fractals((plain << 4) | (plain >> 4)) if plain.dtype == torch.uint8 else x


def fractals_of_eight_rows(x: Any) -> Any:
    """Fractals of 8 rows, for 16."""
    from attrs import evolve

    return evolve(x, data=x.data.unflatten(-2, (2, 8)).transpose(-3, -2).flatten(-3, -2).contiguous())


def with_columns_of_zeros(indices: Tensor) -> Tensor:
    """Filled up with the first key in place of none."""
    return indices.masked_fill(indices < 0, 0)


def beside(args: list[Any], options: Call) -> None:
    """The accumulator in memory of its own."""
    if len(args) > 3 and args[3] is not None:
        args[3] = args[3].clone()


def strided_result(args: list[Any], options: Call) -> None:
    args[2] = torch.empty(args[2].shape[1], args[2].shape[0], dtype=args[2].dtype).t()


def by_groups(pair: Any) -> Any:
    """Words of rows in the order [group, token], beside data in [token, group]."""
    codes, scales = pair
    tokens, groups, _ = codes.shape
    return codes, column_major(scales.reshape(tokens, groups, -1).transpose(0, 1).reshape(tokens * groups, -1))
