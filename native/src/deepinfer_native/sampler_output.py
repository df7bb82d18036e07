"""A sampler's output as the C struct that ``di_commit`` reads. Arrays are shown, not copied."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define

from deepinfer_contracts import SamplerOutput, Space, ViewFlags
from deepinfer_contracts._chains import CONTRACTS
from deepinfer_native.errors import ContractError
from deepinfer_native.library import ffi
from deepinfer_native.members import members_of, written_out
from deepinfer_native.views import DTYPES

Array = np.ndarray
from_buffer = ffi.from_buffer

CODES = {dtype: code for code, dtype in DTYPES.items()}
# `accepted` may stay on the device: the verified ids say the same.
OPTIONAL_ON_HOST = {"accepted"}
NOTHING = object()


@define(eq=False)
class Place:
    """A field that is shown, in the form of the array that was shown last."""

    view: Any
    extents: Any  # of the view
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    data: Any

    def resize(self, array: Any) -> bool:
        """Show another length; False if the number of dimensions differs."""
        shape = array.shape
        if shape == self.shape:
            return True
        if len(shape) != len(self.shape):
            return False
        if len(shape) == 1 or shape[1:] == self.shape[1:]:  # the usual: strides stay
            self.extents[0] = shape[0]
        else:
            set_shape(self.view, shape)
        self.shape = shape
        return True


def set_shape(view: Any, shape: tuple[int, ...]) -> None:
    """Extents and strides of a contiguous array."""
    stride = 1
    for d in range(len(shape) - 1, -1, -1):
        view.shape[d] = shape[d]
        view.stride[d] = stride
        stride *= shape[d]


Filler = Callable[[SamplerOutput, list[Place], list[Any]], bool]


@functools.cache
def filler(shown: tuple[str, ...], absent: tuple[str, ...]) -> Filler:
    """A function that writes the addresses of the fields ``shown``; False if an output has others, or has one in a
    form that has to be looked at."""
    lines = ["def fill(o, places, last):"]
    if absent:
        lines += [f"    if {' or '.join(f'o.{name} is not None' for name in absent)}:", "        return False"]
    for i, name in enumerate(shown):
        lines += [
            f"    a = o.{name}",
            f"    if a is not last[{i}]:",
            f"        p = places[{i}]",
            "        if type(a) is not Array or a.dtype is not p.dtype or not p.resize(a):",
            "            return False",
            "        p.view.data = p.data = from_buffer(a)",
            f"        last[{i}] = a",
        ]
    lines.append("    return True")
    function: Filler = written_out("fill", lines, Array=Array, from_buffer=from_buffer)
    return function


class OutputWriter:
    """Fills one struct again and again. A steady step has the same fields as the one before: then only addresses, and
    lengths that changed, are written. The arrays of an output are kept until the next one."""

    def __init__(self) -> None:
        self.struct = ffi.new("di_sampler_output *")
        self.struct.struct_size = ffi.sizeof("di_sampler_output")
        self.struct.chain = CONTRACTS["SamplerOutput"].layout_hash
        self._arrays = [m.name for m in members_of("di_sampler_output") if m.is_view and not m.name.endswith("_device")]
        self._views = {name: getattr(self.struct, name) for name in self._arrays}
        self._read = operator.attrgetter(*self._arrays)
        self._shown: dict[str, Place] = {}
        self._places: list[Place] = []  # of what is shown
        self._last: list[Any] = []  # and the arrays: one that comes again needs nothing at all
        self._steady: Filler = nothing_is_known
        self._error = 0.0  # confidence_error, as it is in the struct
        self.first: Any = NOTHING  # what an output is known by: its sampled ids

    def fill(self, output: SamplerOutput) -> Any:
        """Returns the struct. Raises ContractError naming the field that is no contiguous host array."""
        try:
            is_steady = self._steady(output, self._places, self._last)
        except ValueError:  # not contiguous: named by the long way
            is_steady = False
        if not is_steady:
            self._fill_any(output)
        self.first = output.sampled_ids
        if output.confidence_error.__class__ is not float or output.confidence_error != self._error:
            self._show_error(output.confidence_error)
        return self.struct

    def _show_error(self, error: Any) -> None:
        try:
            self.struct.confidence_error = error
        except TypeError as wrong:
            raise ContractError(str(wrong), contract="SamplerOutput", field="confidence_error") from wrong
        self._error = self.struct.confidence_error

    def _fill_any(self, output: SamplerOutput) -> None:
        self._steady = nothing_is_known  # until every field is shown: a refused output leaves some of its own
        for name, array in zip(self._arrays, self._read(output), strict=True):
            if array is None and name not in self._shown:
                continue
            if array is None or (name in OPTIONAL_ON_HOST and not isinstance(array, np.ndarray)):
                if self._shown.pop(name, None) is not None:
                    view = self._views[name]
                    view.flags, view.data = 0, ffi.NULL
                continue
            self._show(name, self._views[name], array)
        self._note(output)

    def _note(self, output: SamplerOutput) -> None:
        """Remember what this step shows."""
        self._places = list(self._shown.values())
        self._last = [getattr(output, name) for name in self._shown]
        self._steady = filler(tuple(self._shown), tuple(n for n in self._arrays if n not in self._shown))

    def _show(self, name: str, view: Any, array: Any) -> None:
        if not isinstance(array, np.ndarray) or array.dtype not in CODES or not 1 <= array.ndim <= 4:
            raise ContractError(
                f"is a {type(array).__name__} of {getattr(array, 'dtype', 'no dtype')}, a numpy array is needed",
                contract="SamplerOutput",
                field=name,
            )
        if not array.flags.c_contiguous:
            raise ContractError("is not contiguous", contract="SamplerOutput", field=name)
        data = ffi.from_buffer(array)
        view.data = data
        self._shown[name] = Place(view, view.shape, array.dtype, array.shape, data)
        view.dtype = CODES[array.dtype]
        view.ndim = array.ndim
        set_shape(view, array.shape)
        view.space = int(Space.HOST)
        view.flags = int(ViewFlags.PRESENT)


class TurnWriter:
    """Two writers in turn, as a sampler's staging buffers come: arrays that come again find what was written of them.
    The arrays of an output are kept until the next but one."""

    def __init__(self) -> None:
        self._newest, self._other = OutputWriter(), OutputWriter()

    def fill(self, output: SamplerOutput) -> Any:
        """`OutputWriter.fill` of the one that has the output's arrays, or else of the one that was not used last."""
        if not isinstance(output, SamplerOutput):
            raise ContractError(f"a {type(output).__name__} was given", contract="SamplerOutput")
        writer = self._newest
        if output.sampled_ids is not writer.first:
            writer, self._other = self._other, writer
            self._newest = writer
        return writer.fill(output)


def nothing_is_known(output: SamplerOutput, places: list[Place], last: list[Any]) -> bool:
    """A `Filler`: every field has to be shown."""
    return False
