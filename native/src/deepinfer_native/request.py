"""One request as the C struct that ``di_submit`` copies."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from deepinfer_native.errors import ArgumentError
from deepinfer_native.library import ffi

Ids = Sequence[int] | npt.NDArray[np.integer[Any]]
Bias = Iterable[tuple[int, float]]


def token_ids(name: str, values: Ids) -> npt.NDArray[np.int32]:
    """A contiguous int32 vector. Raises ArgumentError for anything that is no sequence of 32-bit integers."""
    try:
        array = np.asarray(values)
        if array.size == 0:
            return np.empty(0, np.int32)
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise TypeError(f"{array.dtype} of shape {array.shape}")
        if int(array.max()) > np.iinfo(np.int32).max or int(array.min()) < np.iinfo(np.int32).min:
            raise OverflowError("an id does not fit in 32 bits")
        return np.ascontiguousarray(array, dtype=np.int32)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"a flat sequence of token ids is needed: {error}", contract="Request", field=name
        ) from error


def bias_arrays(bias: Bias) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """(tokens, values) of ``(token, value)`` pairs. Raises ArgumentError for what is no such pair."""
    try:
        pairs = [(token, float(value)) for token, value in bias]
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"(token, value) pairs are needed: {error}", contract="Request", field="bias") from error
    return token_ids("bias", [token for token, _ in pairs]), np.array([value for _, value in pairs], np.float32)


FRACTIONS = {"temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"}
PLAIN = {int, bool, float}


def whole(value: Any) -> Any:
    """``value``, of a type that cffi takes as it is. Raises TypeError for a number of another type that would lose its
    fraction, such as ``numpy.float32`` or ``Decimal``."""
    return value if value.__class__ in PLAIN else operator.index(value)


class RequestWriter:
    """A ``di_request`` and what must stay alive until submit returns."""

    def __init__(self, arrays: dict[str, Ids], values: dict[str, Any], bias: Bias = ()) -> None:
        self.struct = ffi.new("di_request *")
        self.struct.struct_size = ffi.sizeof("di_request")
        self._keep: list[Any] = []
        counts = {"prompt": "num_prompt", "eos_ids": "num_eos", "stop_ids": "num_stop", "forced": "num_forced"}
        for name, ids in arrays.items():
            data = ffi.from_buffer("int32_t[]", token_ids(name, ids))
            self._keep.append(data)
            setattr(self.struct, name, data)
            setattr(self.struct, counts[name], len(data))
        if bias.__class__ is not tuple or bias:
            tokens, amounts = bias_arrays(bias)
            self._keep += [ffi.from_buffer("int32_t[]", tokens), ffi.from_buffer("float[]", amounts)]
            self.struct.bias_ids, self.struct.bias_values = self._keep[-2:]
            self.struct.num_bias = len(tokens)
        for name, value in values.items():
            try:
                setattr(self.struct, name, value if name in FRACTIONS else whole(value))
            except (TypeError, OverflowError) as error:
                raise ArgumentError(f"is {value!r}: {error}", contract="Request", field=name) from error


DEFAULTS: dict[str, Any] = {
    "min_tokens": 0,
    "ignore_eos": False,
    "priority": 0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": 0,
    "prefix_lookup": True,
    "top_logprobs": 0,
    "logprobs_raw": False,
    "prompt_logprobs": False,
    "replay_mode": -1,
}
ARRAYS = ("eos_ids", "stop_ids", "forced")
PAIRS = ("bias",)


def request_of(prompt_ids: Ids, max_tokens: int, options: dict[str, Any]) -> RequestWriter:
    """The struct of a request given by keywords of ``Core.submit``. Raises ArgumentError for an unknown one."""
    known = {*DEFAULTS, *ARRAYS, *PAIRS}
    unknown = [name for name in options if name not in known]
    if unknown:
        raise ArgumentError(f"no parameter of a request: {', '.join(unknown)}", contract="Request", field=unknown[0])
    arrays = {"prompt": prompt_ids, **{name: options.get(name, ()) for name in ARRAYS}}
    values = {"max_tokens": max_tokens, **{name: options.get(name, value) for name, value in DEFAULTS.items()}}
    return RequestWriter(arrays, values, options.get("bias", ()))
