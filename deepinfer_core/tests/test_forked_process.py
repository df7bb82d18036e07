"""Other processes have no engine: calls in a forked copy say so at once, and nothing of an engine can be sent."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Callable

import pytest
from engine_toys import Faulty, ToyModel, check_idle, ids, prompts_of, toy_llm

from deepinfer_core.llm import LLM
from deepinfer_core.parameters.sampling_params import SamplingParams

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
PARAMS = SamplingParams(max_tokens=6, temperature=0.0)
WAIT_S = 20


def in_fork(call: Callable[[], object]) -> str:
    """What ``call`` says in a forked copy: its value, or its error; nothing if it did not come back."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: what this is about
        child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(WAIT_S)
            try:
                said = repr(call())
            except Exception as err:
                said = f"{type(err).__name__}: {err}"
            os.write(writing, said.encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        said = stream.read().decode()
    os.waitpid(child, 0)
    return said


def everything(llm: LLM) -> list[str]:
    """What each call says that asks something of the engine."""
    said = []
    for call in (
        lambda: llm.generate([1, 2, 3], PARAMS),
        lambda: next(llm.stream([1, 2, 3], PARAMS)),
        llm.reset_prefix_cache,
        llm.built.engine.flush,
        llm.built.engine.step,
        llm.built.engine.require_grammar_engine,
    ):
        try:
            said.append(repr(call()))
        except Exception as err:
            said.append(f"{type(err).__name__}: {str(err).splitlines()[0]}")
    return said


REFUSED = f"EngineError: E_ENGINE: the engine belongs to process {os.getpid()}, and this is a fork of it"


def test_every_call_in_a_fork_says_that_the_engine_is_elsewhere_and_the_parent_goes_on() -> None:
    prompts = prompts_of(3, 9)
    with toy_llm(prefix_cache=True) as llm:
        expected = ids(llm.generate(prompts, PARAMS))
        stream = llm.stream(prompts, PARAMS)
        next(stream)
        said = in_fork(lambda: everything(llm))
        assert said.count(REFUSED) == 6, said
        assert "get_context('spawn')" in in_fork(lambda: llm.generate(prompts, PARAMS))
        assert REFUSED in in_fork(lambda: list(stream))
        assert in_fork(llm.close) == in_fork(stream.close) == "None"
        assert in_fork(lambda: llm.prefix_cache_report) != ""
        assert [list(chunk.output.token_ids) for chunk in stream if chunk.output is not None] == expected
        check_idle(llm)


@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_engine_and_stream_cannot_be_sent_and_say_what_can(take: Callable[[object], object]) -> None:
    with toy_llm() as llm:
        with pytest.raises(TypeError, match="make one in each process"):
            take(llm)
        with pytest.raises(TypeError, match="send what it gives"):
            take(llm.stream([1, 2, 3], PARAMS))
        (output,) = llm.generate([1, 2, 3], PARAMS)
        assert ids([pickle.loads(pickle.dumps(output))]) == ids([output])


def test_fork_while_a_thread_is_in_a_step_does_not_wait_for_it() -> None:
    in_step, go_on = threading.Event(), threading.Event()

    def waits(_method: str, _number: int, go: Callable[[], object]) -> object:
        in_step.set()
        go_on.wait(WAIT_S)
        return go()

    with toy_llm(parts={"model": Faulty(ToyModel(), waits, "forward")}) as llm:
        thread = threading.Thread(target=llm.generate, args=(prompts_of(2, 9), PARAMS))
        thread.start()
        try:
            assert in_step.wait(WAIT_S)
            assert REFUSED in in_fork(lambda: llm.generate([1, 2, 3], PARAMS))
            assert in_fork(llm.close) == "None"
            assert in_fork(lambda: llm.draft_report) != ""
            assert in_fork(lambda: llm.built.engine.between_steps(lambda core: core)) == "None"
        finally:
            go_on.set()
            thread.join(WAIT_S)
        check_idle(llm)
