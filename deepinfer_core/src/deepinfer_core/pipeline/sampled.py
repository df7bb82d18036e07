"""What a sampler returned, checked and converted before the core sees it.

Two looks: :func:`check_result` when it comes back, at what can be seen without waiting for a device, and
:func:`checked_output` once the values are there.

The contract wants host arrays of exact types. An author's int64 or tensor is no reason to end a run, so whatever
converts without loss is converted; the rest is refused by name, row by row where only some rows are wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

import numpy as np
from attrs import evolve, fields, frozen

from deepinfer_core.errors import DeepInferError, HookReturnError
from deepinfer_core.records import RowStatus, SamplerOutput

SAMPLE = "sampler.sample"
NO_TOKEN = 3
"""Beside the values of ``RowStatus``: the sampler gave no token of the vocabulary for the row."""


@frozen
class BadRow:
    """Why a row has no token."""

    status: int
    """Of ``RowStatus``, or ``NO_TOKEN``."""
    token: int | None = None
    """The id outside the vocabulary that came back."""
    vocab_size: int = 0
    owner: str = ""
    """The sampler to blame: ``first (acme-sampler 0.1)``."""
    error: DeepInferError | None = None
    """What is to be told of it, where that is known."""


NO_ROWS: Mapping[int, BadRow] = {}


def check_result(sampled: Any, n: int, *, owner: str) -> None:
    """Refuse what is no result for ``n`` requests. Reads no values. Raises HookReturnError."""
    ids = getattr(sampled, "sampled_ids", None)
    if ids is None:
        got = "None" if sampled is None else type(sampled).__name__
        if isinstance(sampled, SamplerOutput):
            got += " without sampled_ids"
        raise wrong_step_return(SAMPLE, owner, got, "a SamplerOutput with sampled_ids")
    if hasattr(ids, "__len__") and len(ids) > n:
        raise wrong_step_return(SAMPLE, owner, f"{len(ids)} tokens for {n} requests", "one for each")


def checked_output(
    sampled: Any, n: int, *, vocab_size: int, owner: str, to_host: Callable[[Any], Any]
) -> tuple[SamplerOutput, Mapping[int, BadRow]]:
    """``sampled`` in the types of the contract, and the rows that have no token of the vocabulary.

    :param n: Requests of the step.
    :param to_host: ``Backend.to_host``, for arrays that numpy cannot read.
    :raises HookReturnError: too many tokens, or values of a type that does not convert.
    """
    if _is_plain(sampled, n, vocab_size):
        change = _rest_on_host(sampled, owner, to_host)
        return (evolve(sampled, **change) if change else sampled), NO_ROWS
    ids = _host("sampled_ids", sampled.sampled_ids, "iu", "int32", owner, to_host)
    if len(ids) > n:
        raise wrong_step_return(SAMPLE, owner, f"{len(ids)} tokens for {n} requests", "one for each")
    status = np.zeros(n, dtype=np.int8)
    given = getattr(sampled, "row_status", None)
    if given is not None:
        read = _host("row_status", given, "iu", "int8", owner, to_host)[:n]
        unknown = read[(read < RowStatus.OK) | (read > max(RowStatus))]
        if len(unknown):
            raise wrong_step_return(SAMPLE, owner, f"row_status {int(unknown[0])}", "a value of RowStatus")
        status[: len(read)] = read
    inside = np.zeros(n, dtype=np.bool_)
    inside[: len(ids)] = (ids >= 0) & (ids < vocab_size)
    lost = ~inside & (status == RowStatus.OK)
    bad = {row: BadRow(int(status[row]), owner=owner) for row in np.flatnonzero(status).tolist()}
    for row in np.flatnonzero(lost).tolist():
        bad[row] = BadRow(NO_TOKEN, int(ids[row]) if row < len(ids) else None, vocab_size, owner)
    status[lost] = RowStatus.NO_ALLOWED_TOKEN  # the contract knows no closer one
    tokens = np.zeros(n, dtype=np.int32)
    good = inside[: len(ids)] & (status[: len(ids)] == RowStatus.OK)
    tokens[: len(ids)][good] = ids[good]
    logprob = np.zeros(n, dtype=np.float32)
    given = getattr(sampled, "sampled_logprob", None)
    if given is not None:
        read = _host("sampled_logprob", given, "fiu", "float32", owner, to_host)[:n]
        logprob[: len(read)] = np.where(status[: len(read)] == RowStatus.OK, read, 0)
    if not isinstance(sampled, SamplerOutput):
        return SamplerOutput(sampled_ids=tokens, sampled_logprob=logprob, row_status=status), bad
    change = _rest_on_host(sampled, owner, to_host)
    if bad or not _is_exact(sampled, n):
        change.update(sampled_ids=tokens, sampled_logprob=logprob, row_status=status)
    return (evolve(sampled, **change) if change else sampled), bad or NO_ROWS


_REST = tuple(
    field.name
    for field in fields(SamplerOutput)
    if field.name not in ("sampled_ids", "sampled_logprob", "row_status", "confidence_error", "done_event")
    and not field.name.endswith("_device")
)
"""Arrays that a sampler may leave out."""
_read_rest = attrgetter(*_REST)


def _rest_on_host(sampled: SamplerOutput, owner: str, to_host: Callable[[Any], Any]) -> dict[str, Any]:
    """The optional arrays that are still on the device, as arrays of the host with the shape they have."""
    change: dict[str, Any] = {
        name: _array(name, value, "a host array", owner, to_host)
        for name, value in zip(_REST, _read_rest(sampled), strict=True)
        if value is not None and not isinstance(value, np.ndarray)
    }
    if sampled.confidence_error is not None and not isinstance(sampled.confidence_error, float | int):
        error = _host("confidence_error", sampled.confidence_error, "f", "float32", owner, to_host)
        change["confidence_error"] = float(error.sum())
    return change


def device_arrays(sampled: Any) -> list[Any]:
    """What :func:`checked_output` reads of a result and numpy has not yet; tensors of the host may be among it."""
    names = ("sampled_ids", "sampled_logprob", "row_status", "confidence_error", *_REST)
    values = (getattr(sampled, name, None) for name in names)
    return [value for value in values if value is not None and not isinstance(value, np.ndarray | list | int | float)]


def _is_plain(sampled: Any, n: int, vocab_size: int) -> bool:
    """Whether nothing is to be done for the three arrays: exact, every row ok, with a token of the vocabulary."""
    if n == 0 or not isinstance(sampled, SamplerOutput) or not _is_exact(sampled, n):
        return False
    ids = sampled.sampled_ids
    return not sampled.row_status.any() and int(ids.min()) >= 0 and int(ids.max()) < vocab_size


def _is_exact(sampled: SamplerOutput, n: int) -> bool:
    """Whether the arrays are those of the contract already, as they are from a sampler that follows it."""
    given = (sampled.sampled_ids, np.int32), (sampled.sampled_logprob, np.float32), (sampled.row_status, np.int8)
    return all(isinstance(v, np.ndarray) and v.dtype == dtype and v.shape == (n,) for v, dtype in given)


def _host(name: str, values: Any, kinds: str, wanted: str, owner: str, to_host: Callable[[Any], Any]) -> Any:
    """``values`` as one row of numpy values of one of the ``kinds`` of dtype."""
    array = _array(name, values, f"{wanted} on the host", owner, to_host)
    if array.dtype.kind not in kinds and array.size:
        dtype = getattr(values, "dtype", None)
        raise wrong_step_return(SAMPLE, owner, f"{name} of dtype {dtype or array.dtype}", wanted)
    return array.reshape(-1)


def _array(name: str, values: Any, wanted: str, owner: str, to_host: Callable[[Any], Any]) -> Any:
    try:
        if isinstance(values, np.ndarray | list | tuple | int | float):
            return np.asarray(values)
        return np.asarray(to_host(values))
    except Exception:  # what the backend does not know, or a dtype that numpy lacks
        try:
            return np.asarray(values)
        except Exception as err:
            got = f"{name} of {getattr(values, 'dtype', None) or type(values).__name__}"
            raise wrong_step_return(SAMPLE, owner, got, wanted) from err


def device_ready(values: Any) -> Any:
    """Host values as a contiguous array of a type that a device has; other memory as it is.

    A value that the contract does not know makes the commit fail, after the next step was launched with it; what is
    uploaded in its place does not matter then.
    """
    if not isinstance(values, np.ndarray | list | tuple):
        return values
    array = np.asarray(values)
    if array.dtype.kind in "iub" and array.dtype != np.int32:
        array = array.astype(np.int32)
    elif array.dtype.kind not in "iuf":
        array = np.zeros(array.shape, np.int32)
    return np.ascontiguousarray(array)


def wrong_step_return(op: str, owner: str, got: str, wanted: str) -> HookReturnError:
    """A part of the engine returned something else than its protocol says."""
    return HookReturnError(
        f"{op}{f' of {owner}' if owner else ''} returned {got}, expected {wanted}",
        remedy=f"report it to the authors of {owner}, or use another plugin" if owner else "",
        details={"op": op, "returned": got},
    )
