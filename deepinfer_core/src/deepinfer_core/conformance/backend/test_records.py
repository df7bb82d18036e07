"""Contract records on the device, and results back on the host (``interfaces.Backend``)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from deepinfer_core.conformance import sample_records
from deepinfer_core.conformance.failures import fail, require, require_equal

pytestmark = pytest.mark.level("smoke")

HOST_TYPES = {torch.bfloat16: np.dtype(np.float32)}
DTYPES = (
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


@pytest.mark.parametrize("length", [0, 1, 5], ids="length{}".format)
@pytest.mark.parametrize("name", sample_records.NAMES)
def test_record_is_bound_field_by_field(backend: Any, device: torch.device, name: str, length: int) -> None:
    record = sample_records.filled(name, length)
    untouched = sample_records.filled(name, length)
    bound = backend.bind_inputs(record)
    require_equal(type(bound).__name__, name, "bind_inputs returns another type")
    for field in record.FIELDS:
        expected, got = getattr(untouched, field), getattr(bound, field)
        for (path, array), (where, tensor) in zip(_leaves(expected, field), _leaves(got, field), strict=True):
            require_equal(where, path, "bind_inputs changes the structure of a field", field=field)
            if isinstance(array, np.ndarray):
                _require_bound(backend, tensor, array, device, path)
            else:
                require_equal(tensor, array, "bind_inputs changes a value that is no array", field=path)
        for (path, array), (_, kept) in zip(
            _leaves(expected, field), _leaves(getattr(record, field), field), strict=True
        ):
            same = isinstance(kept, type(array)) and np.array_equal(np.asarray(kept), np.asarray(array))
            require(same, "bind_inputs changes the record that it is given", field=path)


@pytest.mark.parametrize("name", sample_records.NAMES)
def test_absent_fields_stay_absent(backend: Any, name: str) -> None:
    empty = type(sample_records.filled(name, 1))()
    bound = backend.bind_inputs(empty)
    for field in empty.FIELDS:
        require_equal(
            getattr(bound, field), getattr(empty, field), "bind_inputs makes something of nothing", field=field
        )


def test_host_memory_is_shared_and_not_copied(backend: Any, device: torch.device) -> None:
    """The native core writes the next step into the same memory; a backend of the host that copies would be late."""
    if device.type != "cpu":
        pytest.skip("not offered: memory of the host")
    record = sample_records.filled("InputMetadata", 5)
    bound = backend.bind_inputs(record)
    record.input_ids[2] = 12345  # type: ignore[attr-defined]
    require_equal(int(bound.input_ids[2]), 12345, "bind_inputs copies what lies in the device's own memory")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_come_back_to_the_host(backend: Any, device: torch.device, dtype: torch.dtype) -> None:
    values = (torch.arange(12).reshape(3, 4) - 2) % 5
    for case, tensor in (
        ("contiguous", values.to(dtype).to(device)),
        ("transposed", values.to(dtype).to(device).T),
        ("no rows", values.to(dtype).to(device)[:0]),
        ("a slice with an offset", values.to(dtype).to(device)[1:, 1:3]),
        ("a scalar", values.to(dtype).to(device)[0, 3]),
    ):
        host = backend.to_host(tensor)
        require(isinstance(host, np.ndarray), "to_host gives no numpy array", case=case, got=type(host).__name__)
        wanted = tensor.cpu().float().numpy() if dtype in HOST_TYPES else tensor.cpu().numpy()
        require_equal(host.dtype, HOST_TYPES.get(dtype, wanted.dtype), "to_host changes the dtype", case=case)
        require_equal(host.shape, wanted.shape, "to_host changes the shape", case=case)
        require(np.array_equal(host, wanted), "to_host changes values", case=case)


def test_arrays_on_the_host_are_each_their_own(backend: Any, device: torch.device) -> None:
    """Results of two steps are read while both are in flight: no buffer is used twice."""
    tensors = [torch.full((3, 4), float(value), device=device) for value in (1, 2)]
    first, second = (backend.to_host(tensor) for tensor in tensors)
    require(bool((first == 1).all()) and bool((second == 2).all()), "a second to_host overwrites what the first gave")


def test_array_of_the_host_passes_through(backend: Any) -> None:
    """A sampler's output may be of numpy already."""
    values = np.arange(4, dtype=np.int32)
    require(np.array_equal(backend.to_host(values), values), "to_host changes an array of the host")


def _require_bound(backend: Any, tensor: Any, array: np.ndarray, device: torch.device, path: str) -> None:
    __tracebackhide__ = True
    if not isinstance(tensor, torch.Tensor):
        fail("an array of the record is no tensor", field=path, got=type(tensor).__name__)
    require_equal(tensor.device.type, device.type, "an array of the record is on another device", field=path)
    wanted = torch.from_numpy(array)
    require_equal(tensor.dtype, wanted.dtype, "an array of the record has another dtype", field=path)
    require_equal(tuple(tensor.shape), tuple(wanted.shape), "an array of the record has another shape", field=path)
    require(np.array_equal(backend.to_host(tensor), array), "an array of the record has other values", field=path)


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, f"{path}[{key}]")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]")
    else:
        yield path, value
