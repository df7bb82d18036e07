"""Steps that verify and draw drafts in graphs: the same tokens, log-probabilities and counts as op by op."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from graph_toys import PROMPTS, HostCopy, Tape, shipped

from deepinfer_core.graphs.verifying import VerifyGraphs
from deepinfer_core.parameters.sampling_params import SamplingParams

NEEDED = ("torch", "deepinfer_cpu", "deepinfer_v41", "deepinfer_samplers")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"install {', '.join(MISSING)} to run the shipped model")

GREEDY = [SamplingParams(temperature=0, max_tokens=count, ignore_eos=True) for count in (9, 6, 14, 3, 7)]
STOPPED = [SamplingParams(temperature=0, max_tokens=14, stop_token_ids=[721 + i]) for i in range(5)]


def found(capture: Any, *runs: list[SamplingParams], **settings: Any) -> tuple[list[Any], VerifyGraphs | None]:
    """What requests got in each of ``runs``, and what was counted of their drafts."""
    got: list[Any] = []
    with shipped(capture, draft_tokens=3, num_threads=1, **settings) as llm:
        for params in runs:
            outputs = llm.generate(PROMPTS, params)
            got.append([(output.error, output.token_ids, output.cumulative_logprob) for output in outputs])
        report = llm.draft_report.as_record()
        got.append((report, None if report["confidence_error"] is None else round(report.pop("confidence_error"), 6)))
        llm.built.engine.core.audit()
        graphs = llm.built.engine.graphs
        return got, None if graphs is None else graphs.sampling  # type: ignore[return-value]


@pytest.mark.parametrize(("host_like", "settings"), [
    (None, {}),
    (HostCopy, {"verify": "coupled"}),
    pytest.param(HostCopy, {"overlap": False}, marks=pytest.mark.slow),
    (HostCopy, {"verify": "coupled", "draft_schedule": "confidence", "deterministic": "batch"}),
], ids=str)  # fmt: skip
def test_greedy_steps_with_drafts_in_graphs_give_the_same(host_like: Any, settings: dict[str, Any]) -> None:
    wanted, _ = found(None, GREEDY, STOPPED, **settings)
    tape = Tape()
    got, graphs = found(tape.capture, GREEDY, STOPPED, host_like=host_like, **settings)
    assert got == wanted
    assert isinstance(graphs, VerifyGraphs)
    assert graphs.num_launched > 10
    assert graphs.num_recorded == 2 * 4  # of 1, 2, 4 and 5 requests
    assert tape.launched > tape.recorded


def test_steps_that_draw_go_op_by_op_between_those_in_graphs() -> None:
    drawn = [SamplingParams(temperature=0.8, max_tokens=9, seed=i, ignore_eos=True) for i in range(5)]
    mixed = [*GREEDY[:3], *drawn[3:]]
    wanted, _ = found(None, GREEDY, drawn, mixed, GREEDY)
    got, graphs = found(Tape().capture, GREEDY, drawn, mixed, GREEDY, host_like=HostCopy)
    assert got == wanted
    assert graphs is not None
    assert graphs.num_launched > 10


def spoil(model: Any, part: str) -> Any:
    """Make ``part`` of the model fail in a decode step of one request. Returns what mends it."""
    name = "propose" if part == "step" else part
    real = getattr(model, name)
    calls: list[int] = []

    def broken(*_: Any) -> Any:
        raise ZeroDivisionError("a fault")

    def instead(first: Any, *rest: Any) -> Any:
        calls.append(len(first))
        if calls[-1] != 4 if part == "logits" else len(calls) == 1:  # four rows verify; the first block is a prefill's
            return real(first, *rest)
        if part != "step":
            return broken()
        block = real(first, *rest)
        block.step = broken
        return block

    setattr(model, name, instead)
    return lambda: setattr(model, name, real)


@pytest.mark.parametrize(
    ("part", "op"), [("logits", "model.logits"), ("propose", "model.draft"), ("step", "model.draft")]
)
def test_a_fault_of_the_model_while_a_graph_is_recorded_is_the_models(part: str, op: str) -> None:
    """Its requests end; those that come behind are served."""
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with shipped(Tape().capture, draft_tokens=3, num_threads=1) as llm:
        mend = spoil(llm.assembly.model, part)
        [output] = llm.generate(PROMPTS[:1], params)
        assert output.error is not None
        assert output.error.details["op"] == op
        assert "ZeroDivisionError" in output.error.reason
        mend()
        [output] = llm.generate(PROMPTS[:1], params)
        assert output.error is None
        graphs: Any = llm.built.engine.graphs
        assert graphs.sampling.num_recorded == 2
