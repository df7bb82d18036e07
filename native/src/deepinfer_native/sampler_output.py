"""A sampler's output as the C struct that ``di_commit`` reads. Arrays are shown, not copied."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from deepinfer_contracts import SamplerOutput, Space, ViewFlags
from deepinfer_contracts._chains import CONTRACTS
from deepinfer_native.errors import ContractError
from deepinfer_native.library import ffi
from deepinfer_native.views import DTYPES, members_of

CODES = {dtype: code for code, dtype in DTYPES.items()}
# `accepted` may stay on the device: the verified ids say the same.
OPTIONAL_ON_HOST = {"accepted"}


class OutputWriter:
    """Fills one struct again and again."""

    def __init__(self) -> None:
        self.struct = ffi.new("di_sampler_output *")
        self.struct.struct_size = ffi.sizeof("di_sampler_output")
        self.struct.chain = CONTRACTS["SamplerOutput"].layout_hash
        self._arrays = [m.name for m in members_of("di_sampler_output") if m.is_view and not m.name.endswith("_device")]
        self._views = {name: getattr(self.struct, name) for name in self._arrays}
        self._read = operator.attrgetter(*self._arrays)
        self._shown: dict[str, tuple[Any, ...]] = {}
        self._keep: list[Any] = []

    def fill(self, output: SamplerOutput) -> Any:
        """Returns the struct. Raises ContractError naming the field that is no contiguous host array."""
        if not isinstance(output, SamplerOutput):
            raise ContractError(f"a {type(output).__name__} was given", contract="SamplerOutput")
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
        try:
            self.struct.confidence_error = output.confidence_error
        except TypeError as error:
            raise ContractError(str(error), contract="SamplerOutput", field="confidence_error") from error
        return self.struct

    def _show(self, name: str, view: Any, array: Any) -> None:
        dtype, shape = self._shown.get(name, (None, None))
        if type(array) is np.ndarray and array.dtype is dtype and array.shape == shape and array.flags.c_contiguous:
            view.data = data = ffi.from_buffer(array)  # a steady step: only the address is new
            self._keep.append(data)
            return
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

    def clear(self) -> None:
        """Let the arrays of the last output go."""
        self._keep.clear()
