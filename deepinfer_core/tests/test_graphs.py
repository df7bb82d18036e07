"""Decode steps in graphs: fixed inputs, placeholders behind the rows of a step, and the same tokens as op by op.

The graphs are those of ``graph_toys``.
"""

from __future__ import annotations

import importlib.util
import io
from typing import Any

import numpy as np
import pytest
from engine_toys import ToyBackend, ToyModel
from graph_toys import PROMPTS, HostCopy, Tape, refuse, shipped

from deepinfer_contracts import InputMetadataV41
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import EngineError, GraphCaptureError
from deepinfer_core.graphs import DecodeGraphs, captured_sizes, choose_graphs, covering
from deepinfer_core.graphs.drafts import DraftGraphs, drafted_sizes
from deepinfer_core.graphs.progress import record_graphs
from deepinfer_core.graphs.static_inputs import StaticInputs, row_arrays, row_fields, signature
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_native import CoreConfig, placeholder_inputs

NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")

PARAMS = [
    SamplingParams(temperature=0.8 * (i % 2), max_tokens=count, seed=i, ignore_eos=True)
    for i, count in enumerate((9, 6, 12, 3, 7))
]


def answers(capture: Any, **settings: Any) -> list[Any]:
    with shipped(capture, **settings) as llm:
        outputs = llm.generate(PROMPTS, PARAMS)
        llm.built.engine.core.audit()
        assert [output.error for output in outputs] == [None] * len(PROMPTS)
        return [output.token_ids for output in outputs]


@pytest.fixture(scope="module")
def eager() -> list[Any]:
    return answers(None)


@pytest.mark.parametrize(("max_rows", "per_request", "sizes"), [
    (1, 1, (1,)), (3, 1, (1, 2, 3)), (20, 1, (1, 2, 4, 8, 16, 20)), (24, 1, (1, 2, 4, 8, 16, 24)),
    (48, 6, (1, 2, 4, 6, 8, 12, 16, 24, 32, 40, 48)), (6, 6, (1, 2, 4, 6)),
])  # fmt: skip
def test_sizes_are_powers_then_multiples_then_the_maximum(max_rows: int, per_request: int, sizes: Any) -> None:
    assert captured_sizes(max_rows, per_request) == sizes


def test_the_smallest_size_that_holds_the_rows_is_taken() -> None:
    assert [covering((1, 2, 4, 8, 11), rows) for rows in (1, 3, 4, 5, 11, 12)] == [1, 4, 4, 8, 11, None]


def test_fields_of_rows_are_told_by_the_contract() -> None:
    fields = row_fields(InputMetadataV41)
    assert {"input_ids", "positions_c", "slot_main", "state_slot_idx", "block_tables", "swa_offset_len"} <= set(fields)
    assert not {"seqlens_q", "cu_seqlens_q_incl", "fresh_ids", "ngram_win", "ks_", "is_prompt"} & set(fields)


def core_config() -> CoreConfig:
    return CoreConfig(
        block_size=16, num_blocks=8, num_swa_slots=4, num_state_slots=4, max_num_seqs=8, max_num_batched_tokens=64,
        max_model_len=64, vocab_size=100, window=8, swa_ring=10, backtrack=2, ratios_sparse=(1, 2), ngram=3,
        ngram_table=np.arange(100, dtype=np.int32),
        inputs="InputMetadataV41",
    )  # fmt: skip


def bound(record: Any) -> Any:
    from deepinfer_core.interfaces import cpu_backend
    from deepinfer_core.plugins.manager import PluginManager

    PluginManager.from_config(EngineConfig())
    backend = cpu_backend()
    try:
        return backend.bind_inputs(record)
    finally:
        backend.close()


def step(rows: int, seed: int) -> Any:
    """A decode step of ``rows`` rows with random values in every field that a placeholder has."""
    draw = np.random.default_rng(seed)
    record = placeholder_inputs(core_config())
    for name in row_fields(type(record)):
        value = getattr(record, name)
        if isinstance(value, dict):
            setattr(
                record, name, {r: draw.integers(1, 99, (rows, *a.shape[1:])).astype(a.dtype) for r, a in value.items()}
            )
        elif value is not None:
            setattr(record, name, draw.integers(1, 99, (rows, *value.shape[1:])).astype(value.dtype))
    record.num_reqs = record.total_q = rows
    return bound(record)


def by_key(record: Any) -> dict[Any, Any]:
    return dict(zip(*row_arrays(record), strict=True))


def test_rows_behind_those_of_a_step_are_placeholders_whatever_ran_before() -> None:
    placeholder = bound(placeholder_inputs(core_config()))
    static = StaticInputs(step(3, 0), placeholder, 16)
    pads = by_key(placeholder)
    for seed, (rows, size) in enumerate([(3, 4), (8, 8), (1, 1), (2, 4), (5, 16), (16, 16), (4, 4), (9, 16), (1, 8)]):
        inputs = step(rows, seed)
        record = static.load(row_arrays(inputs)[1], rows, size)
        assert record is static.view(size)
        assert (record.num_reqs, record.total_q, record.is_prompt) == (size, size, 0)
        assert record.seqlens_q is None
        given = by_key(inputs)
        arrays = by_key(record)
        assert arrays.keys() == given.keys()
        for key, tensor in arrays.items():
            assert len(tensor) == size
            assert tensor[:rows].tolist() == given[key].tolist(), key
            assert tensor[rows:].tolist() == pads[key].tolist() * (size - rows), key
        assert not record.valid_token_mask[rows:].any()
        assert set(record.query_indices[rows:].tolist()) <= {998244353}
        assert not record.block_tables[rows:].any()


def test_inputs_stay_where_they_are() -> None:
    static = StaticInputs(step(3, 0), bound(placeholder_inputs(core_config())), 16)
    before = {key: tensor.data_ptr() for key, tensor in by_key(static.view(8)).items()}
    static.load(row_arrays(step(7, 1))[1], 7, 8)
    static.load(row_arrays(step(13, 2))[1], 13, 16)
    assert {key: tensor.data_ptr() for key, tensor in by_key(static.view(8)).items()} == before


def test_a_field_that_placeholders_lack_is_padded_with_zeros() -> None:
    import torch

    first = step(3, 0)
    first.gate_force_random = torch.ones(3, dtype=torch.bool)
    static = StaticInputs(first, bound(placeholder_inputs(core_config())), 8)
    assert static.load(row_arrays(first)[1], 3, 8).gate_force_random.tolist() == [True] * 3 + [False] * 5
    keys = [signature(record, row_arrays(record)[0]) for record in (first, step(3, 0), step(7, 1))]
    assert keys[0] != keys[1] == keys[2]


def test_a_placeholder_of_another_width_is_a_fault_of_the_engine() -> None:
    placeholder = bound(placeholder_inputs(core_config()))
    placeholder.block_tables = placeholder.block_tables[:, :-1]
    with pytest.raises(EngineError, match="field block_tables"):
        StaticInputs(step(3, 0), placeholder, 8)


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_tokens_in_graphs_are_those_op_by_op(eager: list[Any], overlap: bool) -> None:
    tape = Tape()
    assert answers(tape.capture, overlap=overlap) == eager
    assert tape.recorded == 4 + 3  # of 1, 2, 4 and 5 rows; sampling, once only greedy requests are left
    assert tape.launched > tape.recorded


@pytest.mark.parametrize("draft_schedule", [pytest.param("fixed", marks=pytest.mark.slow), "confidence"])
def test_tokens_of_verified_drafts_in_graphs_are_those_op_by_op(draft_schedule: str) -> None:
    settings = {"draft_tokens": 3, "verify": "coupled", "draft_schedule": draft_schedule, "num_threads": 1}
    if draft_schedule == "confidence":
        settings["deterministic"] = "batch"
    tape = Tape()
    assert answers(tape.capture, **settings) == answers(None, **settings)
    assert tape.launched > 0


@pytest.mark.parametrize(("overlap", "host_like"), [
    (True, None), (True, HostCopy), pytest.param(False, HostCopy, marks=pytest.mark.slow),
])  # fmt: skip
def test_logits_and_sampling_of_greedy_steps_run_in_graphs_too(overlap: bool, host_like: Any) -> None:
    params = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (9, 6, 12, 3, 7)]
    found = []
    for capture in (None, tape := Tape()):
        with shipped(capture and capture.capture, host_like=host_like, overlap=overlap) as llm:
            outputs = llm.generate(PROMPTS, params)
            found.append([(output.error, output.token_ids, output.cumulative_logprob) for output in outputs])
            graphs = llm.built.engine.graphs
            if graphs is not None:
                assert graphs.sampling is not None
                assert graphs.sampling.num_recorded == graphs.num_recorded == 4
                assert tape.launched > graphs.num_launched > 0
                # One request draws: its steps are sampled op by op, and what the graphs hold stays valid.
                llm.generate(PROMPTS[:2], PARAMS[:2])
                assert graphs.sampling.num_recorded == 4
                again = llm.generate(PROMPTS, params)
                assert [output.token_ids for output in again] == [output.token_ids for output in outputs]
    assert found[0] == found[1]


def test_a_fault_of_the_model_in_a_sampling_graph_is_the_models() -> None:
    with shipped(Tape().capture) as llm:
        real, calls = llm.assembly.model.logits, []

        def logits(hidden: Any) -> Any:
            calls.append(len(hidden))
            if len(calls) == 2:  # behind the prefill
                raise ZeroDivisionError("a fault")
            return real(hidden)

        llm.assembly.model.logits = logits  # type: ignore[method-assign]
        params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
        [output] = llm.generate(PROMPTS[:1], params)
        assert output.error is not None
        assert output.error.details["op"] == "model.logits"
        assert "ZeroDivisionError" in output.error.reason
        [output] = llm.generate(PROMPTS[:1], params)
        assert output.error is None


def test_graphs_recorded_before_the_first_request_serve_every_step(eager: list[Any]) -> None:
    tape = Tape()
    with shipped(tape.capture, graphs_at_start=True) as llm:
        assert tape.recorded == 8  # forward and, behind it, logits and sampling of greedy steps
        assert any("4 decode graphs, 1 to 5 rows" in note for note in llm.built.notes)
        outputs = llm.generate(PROMPTS, PARAMS)
        assert [output.token_ids for output in outputs] == eager
        assert tape.recorded == 8  # the fields of placeholders are those of steps
        graphs = llm.built.engine.graphs
        assert graphs is not None
        assert graphs.sampling is not None
        assert graphs.num_launched > graphs.sampling.num_launched > 0
        assert graphs.num_launched + graphs.sampling.num_launched == tape.launched


def test_the_largest_graph_is_recorded_first() -> None:
    import torch

    sizes: list[int] = []

    def forward(record: Any, caches: Any) -> Any:
        sizes.append(record.total_q)
        return torch.zeros(record.total_q, 2)

    caches = object()
    graphs = DecodeGraphs(forward, caches, Tape().capture, (1, 2, 4, 6), bound(placeholder_inputs(core_config())))
    told: list[tuple[int, int]] = []
    graphs.record_all(lambda done, total: told.append((done, total)))
    assert sizes == [6, 4, 2, 1]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert graphs.num_recorded == 4
    with pytest.raises(EngineError, match="does not fit its graphs"):
        graphs(step(7, 0), caches)
    with pytest.raises(EngineError, match="does not fit its graphs"):
        graphs(step(2, 0), object())


def test_a_forward_of_too_few_rows_is_refused_before_it_is_recorded() -> None:
    import torch

    caches = object()
    placeholder = bound(placeholder_inputs(core_config()))
    graphs = DecodeGraphs(lambda record, _: torch.zeros(1, 2), caches, Tape().capture, (1, 4), placeholder)
    with pytest.raises(EngineError, match="returned 1 rows, expected 4"):
        graphs(step(3, 0), caches)


def test_a_step_that_cannot_be_recorded_ends_its_requests_with_a_way_out() -> None:
    with shipped(refuse) as llm:
        outputs = llm.generate(PROMPTS[:2], PARAMS[:2])
    for output in outputs:
        assert output.error is not None
        assert output.error.details["code"] == "E_GRAPH"
        assert "--no-graphs" in str(output.error)


def test_recording_at_the_start_that_fails_is_a_refusal() -> None:
    with pytest.raises(GraphCaptureError, match="--no-graphs"):
        shipped(refuse, graphs_at_start=True)


def test_switched_off_graphs_are_not_recorded(eager: list[Any]) -> None:
    with shipped(refuse, graphs=False) as llm:
        assert [output.token_ids for output in llm.generate(PROMPTS, PARAMS)] == eager
        assert llm.built.graphs.reason == "graphs are switched off"
        assert "deepinfer: decode steps run op by op: graphs are switched off" in llm.built.notes


def test_the_choice_names_what_stands_against_graphs() -> None:
    backend, model = ToyBackend(), ToyModel()
    assert "backend 'toy' has no graphs" in choose_graphs(True, backend, model).line
    backend.capture = refuse  # type: ignore[attr-defined]
    assert "static_decode" in choose_graphs(True, backend, model).line
    model.static_decode = True  # type: ignore[attr-defined]
    assert choose_graphs(True, backend, model).line == "decode steps run in graphs"
    assert "switched off" in choose_graphs(False, backend, model).line


def test_progress_is_shown_on_a_terminal_only() -> None:
    import torch

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    placeholder = bound(placeholder_inputs(core_config()))
    for stream, wanted in ((Terminal(), "2/2"), (io.StringIO(), "")):
        graphs = DecodeGraphs(lambda r, _: torch.zeros(r.total_q, 2), None, Tape().capture, (1, 2), placeholder)
        line = record_graphs(graphs, stream)
        assert line.startswith("2 decode graphs, 1 to 2 rows, recorded in ")
        assert wanted in stream.getvalue()
        assert bool(stream.getvalue()) == bool(wanted)


@pytest.mark.parametrize(
    ("requests", "sizes"),
    [(1, (1,)), (5, (1, 2, 4, 5)), (32, (1, 2, 4, 8, 16, 32)), (256, (1, 2, 4, 8, 16, 32))],
)
def test_drafts_are_recorded_for_few_requests(requests: int, sizes: Any) -> None:
    assert drafted_sizes(requests) == sizes


class ToyDrafter:
    """Drafts that depend on the rows of a request, and on the token before."""

    def draft_rows(self, inputs: Any, sampled_ids: Any, accepted: Any) -> Any:
        return {"ids": sampled_ids.repeat_interleave(2), "at": inputs.float().unsqueeze(1).repeat(1, 3)}

    def propose(self, rows: Any, caches: Any) -> Any:
        base = rows["ids"].view(-1, 2).sum(1) * 10 + rows["at"].sum(1)

        class Block:
            def step(self, k: int, previous: Any) -> Any:
                return (base + previous * (k + 1)).unsqueeze(1), None if k else base / 100

        return Block()


def test_drafts_in_graphs_are_those_of_the_model_for_any_number_of_requests() -> None:
    import torch

    model, tape, caches = ToyDrafter(), Tape(), object()
    zero = torch.zeros(1, dtype=torch.int32)
    graphs = DraftGraphs(model, caches, tape.capture, (1, 2, 4), model.draft_rows(zero, zero, None))
    for turn in range(4):
        for count in (3, 1, 4, 2, 5):
            draw = torch.Generator().manual_seed(10 * turn + count)
            inputs, sampled = (torch.randint(0, 50, (count,), generator=draw, dtype=torch.int32) for _ in range(2))
            wanted = model.propose(model.draft_rows(inputs, sampled, None), caches)
            got = graphs(None, inputs, sampled, None, caches)
            previous = sampled.long()
            for k in range(3):
                (a, p), (b, q) = got.step(k, previous), wanted.step(k, previous)
                assert torch.equal(a, b), (turn, count, k)
                assert (p is None) == (q is None)
                assert p is None or torch.equal(p, q)
                previous = a.squeeze(1).long() % 50
    assert graphs.num_recorded == 3 * (1 + 3)
    assert tape.launched > tape.recorded
