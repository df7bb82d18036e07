"""A sampler's output as the C struct that ``di_commit`` reads. Arrays are shown, not copied."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from attrs import define

from deepinfer_contracts import SamplerOutput, Space, ViewFlags
from deepinfer_contracts._chains import CONTRACTS
from deepinfer_native.errors import ContractError
from deepinfer_native.library import ffi
from deepinfer_native.views import DTYPES, members_of

Array = np.ndarray
from_buffer = ffi.from_buffer

CODES = {dtype: code for code, dtype in DTYPES.items()}
# `accepted` may stay on the device: the verified ids say the same.
OPTIONAL_ON_HOST = {"accepted"}


@define(eq=False)
class Place:
    """A field that is shown, and the array that was shown last: one that comes again needs nothing at all."""

    read: Callable[[SamplerOutput], Any]
    view: Any
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    array: Any = ...  # nothing yet
    data: Any = None


class OutputWriter:
    """Fills one struct again and again. A steady step has the same fields with the same shapes as the one before: then
    only addresses are written. The arrays of an output are kept until the next one."""

    def __init__(self) -> None:
        self.struct = ffi.new("di_sampler_output *")
        self.struct.struct_size = ffi.sizeof("di_sampler_output")
        self.struct.chain = CONTRACTS["SamplerOutput"].layout_hash
        self._arrays = [m.name for m in members_of("di_sampler_output") if m.is_view and not m.name.endswith("_device")]
        self._views = {name: getattr(self.struct, name) for name in self._arrays}
        self._read = operator.attrgetter(*self._arrays)
        self._shown: dict[str, tuple[Any, ...]] = {}
        self._places: list[Place] = []  # of what is shown
        self._absent: Callable[[SamplerOutput], Any] | None = None  # nothing is remembered: show every field
        self._nothing: Any = ()
        self._keep: list[Any] = []

    def fill(self, output: SamplerOutput) -> Any:
        """Returns the struct. Raises ContractError naming the field that is no contiguous host array."""
        if not isinstance(output, SamplerOutput):
            raise ContractError(f"a {type(output).__name__} was given", contract="SamplerOutput")
        if not self._fill_steady(output):
            self._fill_any(output)
        error = output.confidence_error
        if error.__class__ is not float or error != 0 or self.struct.confidence_error != 0:
            try:
                self.struct.confidence_error = error
            except TypeError as wrong:
                raise ContractError(str(wrong), contract="SamplerOutput", field="confidence_error") from wrong
        return self.struct

    def _fill_steady(self, output: SamplerOutput) -> bool:
        """Write the addresses if everything else is as in the step before."""
        try:
            if self._absent is None or self._absent(output) != self._nothing:
                return False
        except ValueError:  # an array where there was none: its comparison with None has no truth value
            return False
        for place in self._places:
            array = place.read(output)
            if array is place.array:
                continue
            if type(array) is not Array or array.dtype is not place.dtype or array.shape != place.shape:
                return False
            try:
                data = from_buffer(array)
            except ValueError:  # not contiguous: named by the long way
                return False
            place.view.data = data
            place.array, place.data = array, data
        return True

    def _fill_any(self, output: SamplerOutput) -> None:
        self._absent = None  # until every field is shown: a refused output leaves some of its own
        self._keep.clear()
        for name, array in zip(self._arrays, self._read(output), strict=True):
            if array is None and name not in self._shown:
                continue
            if array is None or (name in OPTIONAL_ON_HOST and not isinstance(array, np.ndarray)):
                if self._shown.pop(name, None) is not None:
                    view = self._views[name]
                    view.flags, view.data = 0, ffi.NULL
                continue
            self._show(name, self._views[name], array)
        self._note()

    def _note(self) -> None:
        """Remember what this step shows."""
        self._places = [Place(operator.attrgetter(n), self._views[n], *self._shown[n]) for n in self._shown]
        # The getter of one name gives a value and not a tuple, and none of no name exists: one is asked for twice.
        absent = [n for n in self._arrays if n not in self._shown]
        if absent:
            names = absent * 2 if len(absent) == 1 else absent
            self._absent, self._nothing = operator.attrgetter(*names), (None,) * len(names)

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
        self._keep.append(data)
        view.data = data
        self._shown[name] = (array.dtype, array.shape)
        view.dtype = CODES[array.dtype]
        view.ndim = array.ndim
        stride = 1
        for d in range(array.ndim - 1, -1, -1):
            view.shape[d] = array.shape[d]
            view.stride[d] = stride
            stride *= array.shape[d]
        view.space = int(Space.HOST)
        view.flags = int(ViewFlags.PRESENT)
