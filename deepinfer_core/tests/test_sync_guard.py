"""The setting ``sync_guard``: the shipped model and sampler are clean, and a hidden wait is an error with its place."""

from __future__ import annotations

import importlib.util
import linecache
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from engine_toys import Faulty, ToyBackend, ToyModel, check_idle, ids, prompts_of, solo_tokens, toy_llm

from deepinfer_core.errors import HiddenSync, UnsupportedFeature
from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="backend cpu runs on torch")


@needs_torch
@pytest.mark.parametrize(("overlap", "mode"), [(True, "off"), (False, "off"), (True, "compact")])
def test_shipped_model_and_sampler_never_wait_for_the_device(overlap: bool, mode: str) -> None:
    draw = random.Random(3)
    prompts = [[0, *(draw.randrange(3, 400) for _ in range(draw.randrange(1, 40)))] for _ in range(3)]
    prompts.append([0, *(draw.randrange(3, 400) for _ in range(70))])
    params = [
        SamplingParams(temperature=0.7 * (i % 2), max_tokens=5, min_tokens=i, top_p=0.9 if i > 1 else 1, seed=i)
        for i in range(4)
    ]
    results = []
    for guard in (True, False):
        settings: dict[str, Any] = {"replay_mode": mode, "max_chunk": 16, "sync_guard": guard, "overlap": overlap}
        with LLM(backend="cpu", max_num_seqs=4, **settings) as llm:
            outputs = llm.generate(prompts, params)
            assert [output.error for output in outputs] == [None] * 4
            results.append(ids(outputs))
    assert results[0] == results[1]


@needs_torch
def test_item_in_a_model_on_cpu_is_named_with_file_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(backend="cpu", max_num_seqs=1, sync_guard=True) as llm:
        whole, calls = llm.assembly.model.logits, []

        def logits(hidden: Any) -> Any:
            calls.append(0)
            if len(calls) == 3:
                hidden[0, 0].item()  # the hidden wait
            return whole(hidden)

        monkeypatch.setattr(llm.assembly.model, "logits", logits)
        outputs = llm.generate([[0, 5, 6], [0, 7]], PARAMS)
        check_idle(llm)
    assert [output.finish_reason for output in outputs] == ["engine", "length"]
    assert len(outputs[0].token_ids) == 2
    assert outputs[0].error is not None
    assert outputs[0].error.reason.startswith("E_SYNC: aten::")
    assert str(outputs[0].error.details["place"]).startswith(__file__)
    assert "the hidden wait" in linecache.getline(__file__, int(str(outputs[0].error.details["place"]).split(":")[-1]))


class Guarded(ToyBackend):
    """Counts its guarded phases, and says how a wait is found: a flag that the model trips over."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0
        self.phases = 0

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.inside += 1
        self.phases += 1
        try:
            yield
        finally:
            self.inside -= 1

    def to_host(self, tensor: Any) -> Any:
        if self.inside:
            raise HiddenSync("Backend.to_host while a step is launched")
        return super().to_host(tensor)


@pytest.mark.usefixtures("overlap")
@pytest.mark.parametrize("method", ["forward", "logits"])
def test_hidden_wait_ends_the_requests_of_its_step_and_the_others_go_on(method: str) -> None:
    backend = Guarded()

    def fault(name: str, call: int, go: Any) -> Any:
        if call == 3:
            backend.to_host(None)
        return go()

    prompts = prompts_of(4, 5)
    parts = {"backend": backend, "model": Faulty(ToyModel(), fault, method)}
    with toy_llm(parts=parts, sync_guard=True, max_num_seqs=2) as llm:
        outputs = llm.generate(prompts, PARAMS)
        check_idle(llm)
    failed = [output for output in outputs if output.error is not None]
    assert len(failed) == 2
    for output in failed:
        assert output.error is not None
        assert output.error.details["code"] == "E_SYNC"
        assert output.error.details["op"] == f"model.{method}"
    for output in outputs:
        if output.error is None:
            assert list(output.token_ids) == solo_tokens(prompts[output.index], 6, ends=frozenset())
    assert backend.phases > 8
    assert backend.inside == 0


def test_guard_off_enters_nothing() -> None:
    backend = Guarded()
    with toy_llm(parts={"backend": backend}) as llm:
        llm.generate([[1]], PARAMS)
    assert backend.phases == 0


def test_guard_without_the_method_is_refused() -> None:
    with pytest.raises(UnsupportedFeature, match="has no no_sync, which sync_guard needs"):
        toy_llm(sync_guard=True)
