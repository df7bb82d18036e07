"""Memory, copies, events and the guard on a device: values arrive, nobody waits who need not, everything comes back."""

import time

import numpy as np
import pytest
import torch

from deepinfer_contracts import InputMetadataV41, SamplerInputs
from deepinfer_core.caches import ArenaCaches
from deepinfer_core.errors import CapacityError, HiddenSync
from deepinfer_core.types import CacheLayer, CacheSpec
from deepinfer_cuda.device.runtime import DeviceRuntime

pytestmark = pytest.mark.cuda
LONG = 1_000_000_000
"""Clock cycles of a kernel that only waits: about half a second."""
SPECS = [
    CacheSpec("main", "main", [CacheLayer(2, 64, "v41_fp4", 512, 2), CacheLayer(4, 128, "v41", 512)]),
    CacheSpec("index", "index", [CacheLayer(2, 64, "index_fp4", 128, 2), CacheLayer(4, 128, "index_mxfp8", 128)]),
    CacheSpec("swa", "swa", [CacheLayer(n, 134, "v41", 512) for n in range(5)]),
    CacheSpec("state", "state", [CacheLayer(2, 7, "f32", 512, 2)]),
]
UNITS = {"main": 9, "index": 9, "swa": 6, "state": 6}


@pytest.fixture
def runtime(cuda):
    made = DeviceRuntime(cuda)
    yield made
    made.close()


def record(rows, seed):
    draw = np.random.default_rng(seed)
    ids = lambda *shape: draw.integers(-(2**31), 2**31, shape, dtype=np.int32)  # noqa: E731
    return InputMetadataV41(
        is_prompt=0,
        num_reqs=rows,
        total_q=rows,
        input_ids=ids(rows),
        valid_token_mask=draw.integers(0, 2, rows).astype(np.bool_),
        slot_main={1: ids(rows), 2: ids(rows)},
        block_tables=ids(rows, 64),
    )


def check(bound, packed, cuda):
    for name in ("input_ids", "valid_token_mask", "block_tables"):
        tensor = getattr(bound, name)
        assert tensor.device == cuda
        assert torch.equal(tensor.cpu(), torch.from_numpy(getattr(packed, name))), name
    for ratio, values in packed.slot_main.items():
        assert torch.equal(bound.slot_main[ratio].cpu(), torch.from_numpy(values))


def test_records_that_follow_each_other_quickly_keep_their_values(runtime, cuda):
    packed = [record(1 + 37 * (i % 9), i) for i in range(100)]
    bound, sums = [], []
    for one in packed:
        bound.append(runtime.bind_inputs(one))
        sums.append(bound[-1].block_tables.double().sum())
    for one, there, total in zip(packed, bound, sums, strict=True):
        check(there, one, cuda)
        assert float(total) == float(one.block_tables.astype(np.float64).sum())


def test_memory_of_a_dropped_record_is_not_written_while_a_kernel_reads_it(runtime):
    totals, wanted = [], []
    for i in range(60):
        packed = record(256, i)
        there = runtime.bind_inputs(packed)
        torch.cuda._sleep(200_000)
        totals.append(there.block_tables.double().sum())
        wanted.append(float(packed.block_tables.astype(np.float64).sum()))
        del there
    assert [float(t) for t in totals] == wanted


def test_binding_waits_for_nothing_that_runs(runtime):
    runtime.bind_inputs(record(64, 0))  # pinned memory is made at first use
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    busy = runtime.record_event()
    with runtime.no_sync():
        start = time.perf_counter()
        for i in range(8):
            runtime.bind_inputs(record(64, i))
        took = time.perf_counter() - start
    assert not busy.query()
    assert took < 0.1
    runtime.wait(busy)


def test_prefetched_results_do_not_wait_for_the_next_step(runtime, cuda):
    for _ in range(2):  # kernels are loaded at first use, and that waits for the device
        tokens = torch.arange(1000, device=cuda)
        runtime.prefetch([tokens])
        tokens.zero_()
        runtime.to_host(tokens)
    tokens = torch.arange(1000, device=cuda)
    torch.cuda.synchronize()
    runtime.prefetch([tokens])
    torch.cuda._sleep(LONG)
    tokens.zero_()
    busy = runtime.record_event()
    assert runtime.to_host(tokens).tolist() == list(range(1000))
    assert not busy.query()
    runtime.wait(busy)
    assert busy.query()
    assert not runtime.to_host(tokens).any()


def test_values_are_read_behind_what_makes_them(runtime, cuda):
    for i in range(50):
        value = torch.full((257,), i, dtype=torch.int64, device=cuda)
        torch.cuda._sleep(100_000)
        value = value + 1
        assert runtime.to_host(value).tolist() == [i + 1] * 257
        assert runtime.to_host(value.view(257, 1).expand(257, 3)[:, 1:].bfloat16()).shape == (257, 2)


def test_large_values_are_read_too(runtime, cuda):
    large = torch.arange(10_000_000, device=cuda, dtype=torch.float32)
    assert np.array_equal(runtime.to_host(large), np.arange(10_000_000, dtype=np.float32))


@pytest.mark.parametrize("key", [("main", 2), ("main", 4), ("index", 2), ("index", 4), ("swa", 3), ("state", 2)])
def test_views_lie_where_those_of_the_host_lie(runtime, key):
    def on_host(sizes):
        return {a: torch.zeros(n, dtype=torch.uint8) for a, n in sizes.items()}

    there, here = runtime.alloc_caches(SPECS, UNITS), ArenaCaches(SPECS, UNITS, allocate=on_host, f32=torch.float32)
    assert there.nbytes == here.nbytes
    a, b = there.view(*key), here.view(*key)
    assert (a.tensor.shape, a.tensor.stride(), a.tensor.storage_offset()) == (
        b.tensor.shape,
        b.tensor.stride(),
        b.tensor.storage_offset(),
    )
    assert (a.format, a.page, a.block_stride, a.width) == (b.format, b.page, b.block_stride, b.width)


def test_units_are_zeroed_and_cloned_without_a_wait(runtime):
    caches = runtime.alloc_caches(SPECS, UNITS)
    arena = caches._arenas["swa"]
    arena.copy_(torch.arange(arena.numel(), device=arena.device).to(torch.uint8) | 1)
    before = arena.view(UNITS["swa"], -1).clone()
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    with runtime.no_sync():
        caches.zero("swa", [4, 1, 2])
        caches.clone("swa", [(3, 5), (5, 0)])
        busy = runtime.record_event()
    assert not busy.query()
    after = arena.view(UNITS["swa"], -1)
    assert not after[[1, 2, 4]].any()
    for unit in (0, 3, 5):
        assert torch.equal(after[unit], before[3])


def test_too_much_memory_is_refused_with_numbers(runtime):
    total = torch.cuda.get_device_properties(runtime.device).total_memory
    units = {**UNITS, "swa": 2 * total // 300_000}
    with pytest.raises(CapacityError, match=r"bytes for the caches do not fit on cuda:0") as caught:
        runtime.alloc_caches(SPECS, units)
    details = caught.value.details
    assert details["bytes"] > details["total"] >= details["free"] > 0
    assert "--kv-memory" in caught.value.remedy
    assert runtime.alloc_caches(SPECS, UNITS).nbytes > 0


WAITS = {
    "item": lambda t: t.sum().item(),
    "bool": lambda t: bool(t[0]),
    "tolist": lambda t: t.tolist(),
    "cpu": lambda t: t.cpu(),
    "mask": lambda t: t[t > 0],
    "nonzero": torch.nonzero,
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_hidden_wait_is_told_with_file_and_line(runtime, cuda, wait):
    row = torch.ones(4, device=cuda)
    with runtime.no_sync(), pytest.raises(HiddenSync, match=r"at .*test_runtime.py:\d+ waits for the device"):
        wait(row)
    wait(row)


def test_the_runtime_itself_may_wait_inside_the_guard(runtime, cuda):
    row = torch.arange(4, device=cuda)
    with runtime.no_sync():
        runtime.bind_inputs(SamplerInputs(temperature=np.ones(3, np.float32)))
        assert runtime.to_host(row).tolist() == [0, 1, 2, 3]
        runtime.wait(runtime.record_event())


def test_closing_gives_all_memory_back(cuda):
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated(cuda)
    made = use_everything(cuda)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated(cuda) == before
    assert made._staging.num_bytes == 0


def test_engines_that_follow_each_other_capture_on_one_stream(cuda):
    """Libraries keep memory for each stream that they ran on."""
    seen = []
    for _ in range(4):
        made = DeviceRuntime(cuda)
        beside = DeviceRuntime(cuda)
        assert beside._queues.capture.cuda_stream != made._queues.capture.cuda_stream
        seen.append(made._queues.capture.cuda_stream)
        beside.close()
        made.close()
    assert len(set(seen)) == 1


def use_everything(cuda):
    made = DeviceRuntime(cuda)
    made.alloc_caches(SPECS, UNITS)
    bound = made.bind_inputs(record(256, 0))
    made.prefetch([bound.input_ids, bound.block_tables])
    row = torch.zeros(64, device=cuda)
    made.capture(lambda: row.add_(1))()
    made.close()
    made.close()
    return made


def test_tensors_of_several_types_are_copied_in_few_launches(runtime, cuda):
    draw = torch.Generator(cuda).manual_seed(5)
    shapes = [(64,), (64, 7), (64, 64), (1,)] * 4
    sources = [torch.randint(0, 2, shape, device=cuda, generator=draw, dtype=torch.int32) for shape in shapes]
    sources += [torch.ones(64, dtype=torch.bool, device=cuda), torch.zeros(64, 3, 2, dtype=torch.int32, device=cuda)]
    memory = [torch.full((100, *t.shape[1:]), -1, device=cuda).to(t.dtype) for t in sources]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        runtime.copy_all([m[: len(t)] for m, t in zip(memory, sources, strict=True)], sources)
        torch.cuda.synchronize()
    for rows, source in zip(memory, sources, strict=True):
        assert torch.equal(rows[: len(source)], source)
        assert torch.equal(rows[len(source) :], torch.full_like(rows, -1)[len(source) :])
    events = profile.profiler.kineto_results.events()
    assert sum(str(event.device_type()).endswith("CUDA") for event in events) <= 3


def test_a_graph_writes_host_memory(runtime, cuda):
    source = torch.arange(7, dtype=torch.int32, device=cuda)
    copy = runtime.host_like(source)
    assert copy.is_pinned()
    launch = runtime.capture(lambda: copy.copy_(source.add_(1), non_blocking=True))
    values = copy.numpy()
    for count in range(2, 5):  # the run before the recording was the first
        launch()
        event = runtime.record_event()
        runtime.wait(event)
        assert values.tolist() == [count + i for i in range(7)]
