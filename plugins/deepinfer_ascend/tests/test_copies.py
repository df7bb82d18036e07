"""Copies between host and device: values, and what waits for what, with streams of the host in place of an NPU's."""

from contextlib import contextmanager
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

from deepinfer_ascend.device import queues as queues_module
from deepinfer_ascend.device.copies import ALIGN, DOWNLOADS, LARGEST_STAGED, Copies
from deepinfer_ascend.device.queues import Queues, pinned
from deepinfer_ascend.device.staging import LEAST_BYTES, Ring

HOST = torch.device("cpu")


class Event:
    def __init__(self, done):
        self.done, self.waits = done, 0

    def query(self):
        return self.done

    def synchronize(self):
        self.done, self.waits = True, self.waits + 1


class HostQueues:
    """Copies run at once; ``done`` is what new events say."""

    def __init__(self, done=True):
        self.log, self.done = [], done

    @contextmanager
    def uploading(self):
        self.log.append("upload")
        yield

    @contextmanager
    def downloading(self):
        self.log.append("download")
        yield

    def uploaded(self, memory):
        assert memory.dtype == torch.uint8
        return Event(self.done)

    def downloaded(self):
        return Event(self.done)


@attrs.define
class Record:
    ids: object
    count: int
    tables: object
    nothing: object = None


def allocate(num_bytes):
    return torch.full((num_bytes,), 0xA5, dtype=torch.uint8)


def copies(done=True):
    queues = HostQueues(done)
    return Copies(HOST, queues, allocate), queues


def test_a_record_comes_with_its_values_types_and_shapes_by_one_copy():
    made, queues = copies()
    record = Record(
        np.arange(5, dtype=np.int32), 7, {1: np.ones((2, 3), bool), 2: [np.zeros((0, 4), np.int64), None, 3]}
    )
    bound = made.bind(record)
    assert queues.log == ["upload"]
    assert (bound.count, bound.nothing, bound.tables[2][1:]) == (7, None, [None, 3])
    assert torch.equal(bound.ids, torch.arange(5, dtype=torch.int32))
    assert torch.equal(bound.tables[1], torch.ones(2, 3, dtype=torch.bool))
    assert (bound.tables[2][0].shape, bound.tables[2][0].dtype) == ((0, 4), torch.int64)
    assert bound.tables[1].data_ptr() - bound.ids.data_ptr() == ALIGN
    assert isinstance(record.ids, np.ndarray)


def test_records_that_are_bound_later_leave_earlier_ones_alone():
    made, _ = copies()
    bound = [made.bind(Record(np.full(9, i, np.int64), i, None)) for i in range(40)]
    assert [int(record.ids.sum()) for record in bound] == [9 * i for i in range(40)]


def test_a_tensor_of_the_device_and_a_record_without_arrays_are_not_copied():
    made, queues = copies()
    there = torch.ones(3)
    assert made.bind(Record(there, 1, None)).ids is there
    assert queues.log == []


def test_results_are_copied_when_they_are_asked_for_in_advance_and_waited_for_when_they_are_read():
    made, queues = copies(done=False)
    values, other = torch.arange(4.0).bfloat16(), torch.tensor([[1, 2], [3, 4]]).t()
    made.prefetch([values, other, None, 3])
    assert queues.log == ["download"]
    block = made._copies[id(values)].block
    assert block.event.waits == 0
    values.zero_()
    found = made.to_host(values)
    assert (found.dtype, found.tolist()) == (np.float32, [0.0, 1.0, 2.0, 3.0])
    assert made.to_host(other).tolist() == [[1, 3], [2, 4]]
    assert queues.log == ["download"]
    assert block.event.waits == 2
    assert made.to_host(values).tolist() == [0.0] * 4  # read anew
    assert queues.log == ["download"] * 2


def test_what_nobody_reads_is_forgotten_and_no_block_is_used_by_two():
    made, _ = copies()
    first = torch.zeros(2)
    made.prefetch([first])
    kept = [torch.full((2,), float(i)) for i in range(1, DOWNLOADS + 1)]
    for tensor in kept:
        made.prefetch([tensor])
    assert id(first) not in made._copies
    assert [made.to_host(tensor)[0] for tensor in kept] == [float(i) for i in range(1, DOWNLOADS + 1)]


def test_large_results_go_past_the_ring():
    made, queues = copies()
    assert made.to_host(torch.zeros(LARGEST_STAGED + 1, dtype=torch.uint8)).nbytes == LARGEST_STAGED + 1
    assert made.to_host(torch.zeros(0, 3)).shape == (0, 3)
    assert made.to_host([1, 2]).tolist() == [1, 2]
    assert queues.log == []


def test_a_ring_waits_for_the_copy_that_uses_a_block():
    ring = Ring(allocate, 2)
    first = ring.take(10)
    assert first.memory.numel() == LEAST_BYTES
    first.event = event = Event(False)
    ring.take(10)
    assert event.waits == 0
    assert ring.take(LEAST_BYTES + 1).memory.numel() == 2 * LEAST_BYTES
    assert (event.waits, ring.waits) == (1, 1)


@pytest.mark.parametrize(("message", "told"), [("error code is 507911", False), ("host out of memory", True)])
def test_memory_that_cannot_be_pinned_is_copied_from_and_other_faults_are_told(monkeypatch, message, told):
    empty = torch.empty

    def refuse(*shape, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError(message)
        return empty(*shape, **options)

    monkeypatch.setattr(queues_module.torch, "empty", refuse)
    if told:
        with pytest.raises(RuntimeError, match=message):
            pinned(8)
    else:
        assert pinned(8).numel() == 8


def test_streams_wait_for_what_they_read():
    log = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_event(self, event):
            log.append(f"{self.name} waits for {event.stream.name}")

    class Recorded(Event):
        def __init__(self):
            super().__init__(False)

        def record(self, stream):
            self.stream = stream

    @contextmanager
    def entered(stream):
        log.append(f"in {stream.name}")
        yield

    names, compute = iter(("upload", "download")), Stream("compute")
    module = SimpleNamespace(
        Event=Recorded, Stream=lambda device: Stream(next(names)), current_stream=lambda device: compute, stream=entered
    )

    class Memory:
        def record_stream(self, stream):
            log.append(f"kept for {stream.name}")

    made = Queues(module, HOST)
    with made.uploading():
        pass
    made.uploaded(Memory())
    with made.downloading():
        pass
    assert made.downloaded().stream.name == "download"
    assert log == [
        "in upload", "kept for compute", "compute waits for upload", "download waits for compute", "in download",
    ]  # fmt: skip
