"""Graphs on a device: values as op by op, errors that leave the device usable, memory shared and given back."""

import pytest
import torch

from deepinfer_core.assembly.assemble import assemble
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import GraphCaptureError
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_cuda.device.runtime import DeviceRuntime

pytestmark = pytest.mark.cuda
PROMPTS = ["import os\n" * 4, "def f(x):\n    return x\n" * 2, "class A:\n" * 6, "x = 1\n", "for i in range(3):\n"]
PARAMS = [
    SamplingParams(temperature=0.8 * (i % 2), max_tokens=count, seed=i, ignore_eos=True)
    for i, count in enumerate((9, 6, 12, 3, 7))
]


@pytest.fixture
def runtime(cuda):
    made = DeviceRuntime(cuda)
    yield made
    made.close()


def test_a_launch_computes_from_what_the_inputs_hold_then(runtime, cuda):
    x, y = torch.zeros(64, 32, device=cuda), torch.zeros(64, 32, device=cuda)
    weight = torch.randn(32, 32, device=cuda)
    launch = runtime.capture(lambda: y.copy_(torch.relu(x @ weight) + 1))
    assert (y == 1).all()  # the eager run is a run
    for seed in range(3):
        x.copy_(torch.randn(64, 32, generator=torch.Generator().manual_seed(seed)))
        wanted = torch.relu(x @ weight) + 1
        launch()
        assert torch.equal(y, wanted)


@pytest.mark.parametrize("wait", [lambda t: t.sum().item(), lambda t: t.cpu(), lambda t: torch.nonzero(t),
                                  lambda t: torch.cuda.synchronize()])  # fmt: skip
def test_a_call_that_waits_is_refused_and_the_device_goes_on(runtime, cuda, wait):
    row = torch.ones(8, device=cuda)
    with pytest.raises(GraphCaptureError, match="cannot be captured") as caught:
        runtime.capture(lambda: wait(row.add_(1)))
    assert "--no-graphs" in caught.value.remedy
    assert torch.rand(4, device=cuda).max() < 1  # the generators are not left in a capture
    launch = runtime.capture(lambda: row.fill_(3))
    row.zero_()
    launch()
    assert row.tolist() == [3.0] * 8


def test_an_error_of_the_call_itself_comes_as_it_is(runtime, cuda):
    with pytest.raises(ZeroDivisionError):
        runtime.capture(lambda: 1 / 0)
    row = torch.zeros(2, device=cuda)
    runtime.capture(lambda: row.add_(1))()
    assert row.tolist() == [2.0, 2.0]


def test_graphs_share_their_memory(runtime, cuda):
    source = torch.randn(4096, 4096, device=cuda)
    out = torch.zeros(4096, device=cuda)

    def work(rows):
        out[:rows].copy_((source[:rows] * 2 + 1).relu().sum(1))

    launches = [runtime.capture(lambda rows=rows: work(rows)) for rows in (4096, 2048, 1024, 512)]
    first = torch.cuda.memory_reserved(cuda)
    launches += [runtime.capture(lambda rows=rows: work(rows)) for rows in (4096, 2048, 1024, 512)]
    assert torch.cuda.memory_reserved(cuda) - first < 32 << 20
    wanted = (source * 2 + 1).relu().sum(1)
    for launch, rows in zip(launches, (4096, 2048, 1024, 512) * 2, strict=True):
        out.zero_()
        launch()
        assert torch.equal(out[:rows], wanted[:rows])
        assert not out[rows:].any()


def test_a_graph_that_nobody_holds_is_given_back(runtime, cuda):
    row = torch.zeros(8, device=cuda)
    launch = runtime.capture(lambda: row.add_(1))
    assert runtime._graphs.count == 1
    del launch
    assert runtime._graphs.count == 0


def test_a_capture_behind_the_last_graph_of_a_pool_takes_another_pool(runtime, cuda):
    """An engine ends and the next one begins on the same backend."""
    row = torch.zeros(8, device=cuda)
    for count in range(1, 4):
        launches = [runtime.capture(lambda: row.add_(1)) for _ in range(2)]
        row.zero_()
        for launch in launches:
            launch()
        assert row.tolist() == [2.0] * 8, count
        del launches, launch
    assert torch.rand(4, device=cuda).max() < 1


GREEDY = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (9, 6, 12, 3, 7)]


def answers(params=PARAMS, **settings):
    """Tokens of the shipped model on the device, and the graphs that were recorded."""
    given = {"backend": "cuda", "max_num_seqs": 5, "block_size": 16, "max_model_len": 128, **settings}
    assembly = assemble(EngineConfig.resolve(given, environ={}, flag_origin="argument"), announce=None)
    with LLM.from_assembly(assembly) as llm:
        outputs = llm.generate(PROMPTS, params)
        llm.built.engine.core.audit()
        for output in outputs:
            if output.error is not None:
                raise output.error
        graphs = llm.built.engine.graphs
        return [output.token_ids for output in outputs], 0 if graphs is None else graphs.num_launched


@pytest.mark.parametrize("mode", ["released", "exact"])
@pytest.mark.parametrize("drafts", [0, 3])
def test_tokens_in_graphs_are_those_op_by_op(mode, drafts):
    settings = {"numeric_mode": mode, "draft_tokens": drafts, "verify": "coupled", "sync_guard": True}
    eager, none = answers(graphs=False, **settings)
    assert none == 0
    graphed, launched = answers(**settings)
    assert launched > 0
    assert graphed == eager


def test_graphs_recorded_at_the_start_give_the_same_tokens():
    eager, _ = answers(graphs=False, overlap=False)
    graphed, launched = answers(graphs_at_start=True)
    assert launched > 0
    assert graphed == eager


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("at_start", [True, False])
def test_greedy_steps_sampled_in_graphs_give_the_same_tokens(overlap, at_start):
    settings = {"overlap": overlap, "sync_guard": True}
    eager, _ = answers(GREEDY, graphs=False, **settings)
    graphed, launched = answers(GREEDY, graphs_at_start=at_start, **settings)
    assert launched > 0
    assert graphed == eager


@pytest.mark.parametrize("settings", [
    {"verify": "coupled"}, {"verify": "rejection"}, {"verify": "coupled", "overlap": False},
    {"verify": "rejection", "draft_schedule": "confidence"},
], ids=str)  # fmt: skip
def test_greedy_steps_with_drafts_in_graphs_give_the_same_tokens(settings):
    """Verification, the model's block and its drafts are two graphs; nothing in them waits."""
    given = {"numeric_mode": "exact", "draft_tokens": 3, "sync_guard": True, **settings}
    eager, _ = answers(GREEDY, graphs=False, **given)
    graphed, launched = answers(GREEDY, **given)
    assert launched > 0
    assert graphed == eager


def test_requests_that_draw_and_greedy_ones_take_turns_with_drafts():
    settings = {"numeric_mode": "exact", "draft_tokens": 3, "verify": "coupled", "sync_guard": True}
    found = {True: None, False: None}
    for graphs in found:
        given = {"backend": "cuda", "max_num_seqs": 5, "block_size": 16, "max_model_len": 128, **settings}
        with LLM(graphs=graphs, **given) as llm:
            runs = [llm.generate(PROMPTS, params) for params in (GREEDY, PARAMS, GREEDY)]
            found[graphs] = [[(output.error, output.token_ids) for output in run] for run in runs]
            if graphs:
                assert llm.built.engine.graphs.sampling.num_launched > 0
    assert found[True] == found[False]
