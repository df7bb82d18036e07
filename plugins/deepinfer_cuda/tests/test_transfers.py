"""Copies between host and device, with streams that only write down what they are asked."""

import numpy as np
import pytest
import torch
from host_queues import Event, HostQueues, allocate

from deepinfer_contracts import InputMetadataV41, SamplerInputs
from deepinfer_cuda.device.downloads import LARGEST_STAGED, Downloads
from deepinfer_cuda.device.staging import LEAST_BYTES, StagingRing
from deepinfer_cuda.device.uploads import Uploads

HOST = torch.device("cpu")
META = torch.device("meta")


def uploads(count: int = 3, done: bool = True) -> tuple[Uploads, HostQueues, StagingRing]:
    queues, ring = HostQueues(done), StagingRing(allocate, count)
    return Uploads(HOST, queues, ring), queues, ring


def decode_record(rows: int = 5) -> InputMetadataV41:
    draw = np.random.default_rng(rows)
    ids = lambda *shape: draw.integers(0, 1000, shape, dtype=np.int32)  # noqa: E731
    return InputMetadataV41(
        is_prompt=0,
        num_reqs=rows,
        total_q=rows,
        input_ids=ids(rows),
        valid_token_mask=draw.integers(0, 2, rows).astype(np.bool_),
        slot_main={1: ids(rows), 2: ids(rows)},
        swa_offset_len=ids(rows, 2),
        block_tables=ids(rows, 64),
    )


def test_a_bound_record_has_the_values_types_and_shapes_of_the_packed_one():
    binder, queues, _ = uploads()
    packed = decode_record()
    bound = binder.bind(packed)
    assert queues.log == ["upload", "uploaded", "go on"]
    assert bound is not packed
    for name in ("input_ids", "valid_token_mask", "swa_offset_len", "block_tables"):
        tensor, array = getattr(bound, name), getattr(packed, name)
        assert isinstance(array, np.ndarray)
        assert torch.equal(tensor, torch.from_numpy(array))
        assert tensor.dtype == torch.from_numpy(array).dtype
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 16 == 0
    assert bound.slot_main is not packed.slot_main
    assert torch.equal(bound.slot_main[2], torch.from_numpy(packed.slot_main[2]))
    assert bound.positions is None
    assert bound.num_reqs == 5


def test_all_arrays_of_a_record_are_views_into_one_buffer():
    bound = uploads()[0].bind(decode_record())
    buffers = {t.untyped_storage().data_ptr() for t in (bound.input_ids, bound.block_tables, *bound.slot_main.values())}
    assert len(buffers) == 1


def test_lists_numbers_strided_and_empty_arrays_are_bound():
    binder, _, _ = uploads()
    mask = np.arange(12, dtype=np.int32).reshape(3, 4)
    packed = SamplerInputs(
        temperature=np.zeros(0, np.float32),
        seed=np.array([2**63 + 1], np.uint64),
        stop_ids=mask[:, ::2],
        grammar_mask=[mask, None, mask.T],
        max_top_logprobs=3,
    )
    bound = binder.bind(packed)
    assert bound.temperature.shape == (0,)
    assert bound.temperature.dtype == torch.float32
    assert bound.seed.dtype == torch.uint64
    assert int(bound.seed.view(torch.int64)[0]) == -(2**63) + 1
    assert bound.stop_ids.tolist() == mask[:, ::2].tolist()
    assert bound.grammar_mask[1] is None
    assert bound.grammar_mask[2].tolist() == mask.T.tolist()
    assert packed.grammar_mask[0] is mask
    assert bound.max_top_logprobs == 3


def test_what_is_on_the_device_already_is_neither_copied_nor_waited_for():
    binder, queues, ring = uploads()
    here = torch.arange(4)
    bound = binder.bind(SamplerInputs(temperature=here))
    assert bound.temperature is here
    assert queues.log == []
    assert ring.num_bytes == 0


def test_tensors_of_another_device_are_moved_bf16_too():
    binder, queues, _ = uploads()
    binder._device = META  # the target of an upload; nothing is read from it here
    bound = binder.bind(SamplerInputs(temperature=torch.ones(3, dtype=torch.bfloat16), top_p=torch.ones(2, 2)))
    assert queues.log == ["upload", "uploaded", "go on"]
    assert bound.temperature.dtype == torch.bfloat16
    assert bound.temperature.shape == (3,)
    assert bound.top_p.device == META


def test_an_array_that_no_tensor_can_hold_is_refused():
    with pytest.raises(TypeError, match="complex128"):
        uploads()[0].bind(SamplerInputs(temperature=np.zeros(2, complex)))


def test_what_follows_waits_for_a_copy_that_is_not_over():
    binder, queues, _ = uploads(done=False)
    binder.bind(decode_record())
    assert queues.log[-1] == "go on behind"


def test_a_block_is_written_again_only_when_its_copy_is_over():
    binder, _, ring = uploads(count=2, done=False)
    for _ in range(2):
        binder.bind(decode_record())
    assert ring.waits == 0
    binder.bind(decode_record())
    assert ring.waits == 1


def test_blocks_grow_and_are_kept():
    ring = StagingRing(allocate, 1)
    first = ring.take(10)
    assert ring.take(LEAST_BYTES) is first
    larger = ring.take(LEAST_BYTES + 1)
    assert len(larger.bytes) == 2 * LEAST_BYTES
    assert ring.num_bytes == 2 * LEAST_BYTES
    larger.event = pending = Event(done=False)
    ring.close()
    assert pending.waits == 1
    assert ring.num_bytes == 0


def downloads(count: int = 2) -> tuple[Downloads, HostQueues, StagingRing]:
    queues, ring = HostQueues(), StagingRing(allocate, count)
    return Downloads(HOST, queues, ring), queues, ring


def test_values_come_to_the_host_in_memory_of_their_own():
    reader, _, _ = downloads()
    source = torch.randn(3, 4)
    values = reader.to_host(source)
    assert values.tolist() == source.tolist()
    reader.to_host(torch.zeros(3, 4))
    reader.to_host(torch.zeros(3, 4))
    assert values.tolist() == source.tolist()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, torch.uint64, torch.float32])
def test_types_are_kept_and_bf16_is_widened(dtype):
    reader, _, _ = downloads()
    assert torch.from_numpy(reader.to_host(torch.ones(5, dtype=dtype))).dtype == dtype
    assert reader.to_host(torch.ones(5, dtype=torch.bfloat16)).dtype == np.float32


def test_prefetched_values_are_those_of_the_moment_of_the_prefetch():
    reader, queues, _ = downloads()
    tokens, strided = torch.arange(6), torch.arange(12).view(3, 4).T
    reader.prefetch([tokens, strided, None, np.arange(3), torch.empty(0)])
    assert queues.log == ["download", "downloaded"]
    tokens.zero_()  # a later step
    assert reader.to_host(tokens).tolist() == list(range(6))
    assert reader.to_host(strided).tolist() == strided.tolist()
    assert queues.log == ["download", "downloaded"]
    assert reader.to_host(tokens).tolist() == [0] * 6  # read once; then it is what it is now


def test_copies_that_nobody_reads_are_forgotten_when_the_ring_comes_round():
    reader, queues, ring = downloads(count=2)
    lost, kept = torch.arange(3), torch.arange(4)
    reader.prefetch([lost])
    for _ in range(2):
        reader.prefetch([kept])  # the second time it is under way already
    assert queues.log.count("download") == 2
    reader.prefetch([torch.arange(5)])
    lost.zero_()
    assert reader.to_host(lost).tolist() == [0, 0, 0]
    assert ring.waits == 0


def test_a_copy_that_was_read_and_begun_anew_outlives_the_block_of_the_first():
    reader, _, _ = downloads(count=2)
    tokens = torch.arange(3)
    reader.prefetch([tokens])  # block 0
    reader.to_host(tokens)
    reader.prefetch([tokens])  # block 1
    reader.prefetch([torch.arange(4)])  # block 0 again, whose first copy is no longer anybody's
    tokens.zero_()
    assert reader.to_host(tokens).tolist() == [0, 1, 2]


def test_large_tensors_do_not_pass_through_pinned_memory():
    reader, queues, ring = downloads()
    large = torch.zeros(LARGEST_STAGED + 1, dtype=torch.uint8)
    reader.prefetch([large])
    assert reader.to_host(large).nbytes == LARGEST_STAGED + 1
    assert queues.log == []
    assert ring.num_bytes == 0


def test_records_of_many_sizes_keep_their_values_and_what_is_remembered_of_them_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import deepinfer_cuda.device.uploads as module

    monkeypatch.setattr(module, "MOST_LAYOUTS", 4)
    binder, _, ring = uploads()
    for rows in (5, 1, 7, 5, 2, 3, 9, 5, 1, 4, 0, 6) * 3:
        packed = decode_record(rows)
        bound = binder.bind(packed)
        for name in ("input_ids", "valid_token_mask", "swa_offset_len", "block_tables"):
            assert torch.equal(getattr(bound, name), torch.from_numpy(getattr(packed, name))), (rows, name)
        for ratio, values in packed.slot_main.items():
            assert torch.equal(bound.slot_main[ratio], torch.from_numpy(values))
    assert len(binder._layouts) <= 4
    assert all(len(block.views) <= 4 for block in ring._blocks if block is not None)
