"""A stream that several threads have: one takes pieces while another cancels or closes, or they take pieces in turn."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from engine_toys import ToyModel, check_idle, prompts_of, toy_llm

from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.outputs import StreamChunk
from deepinfer_core.requests.runs import Stream

pytestmark = pytest.mark.usefixtures("overlap")
PARAMS = SamplingParams(max_tokens=4, temperature=0.0, ignore_eos=True, n=2)
PROMPTS = prompts_of(6, 9)
WAIT_S = 20


def test_prompt_that_was_being_read_when_the_stream_was_closed_does_not_start() -> None:
    reading, go_on = threading.Event(), threading.Event()

    def prompts() -> Iterator[list[int]]:
        yield PROMPTS[0]
        reading.set()
        go_on.wait(WAIT_S)
        yield PROMPTS[1]

    with toy_llm() as llm:
        stream = llm.stream(prompts(), PARAMS)
        thread = threading.Thread(target=list, args=(stream,))
        thread.start()
        assert reading.wait(WAIT_S)
        stream.close()
        go_on.set()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        check_idle(llm)


def test_cancel_reaches_a_prompt_that_is_being_checked() -> None:
    streams: list[Stream] = []

    class Model(ToyModel):
        def check_prompt(self, ids: object) -> None:
            streams[0].cancel(0)

    with toy_llm(parts={"model": Model()}) as llm:
        streams.append(llm.stream(PROMPTS[:1], PARAMS))
        assert [c.output.finish_reason for c in streams[0] if c.output is not None] == ["abort"]
        check_idle(llm)


@pytest.fixture
def busy_switching() -> Iterator[None]:
    """Threads take turns all the time."""
    held = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(held)


@pytest.mark.usefixtures("busy_switching")
def test_threads_that_share_a_stream_get_each_piece_once() -> None:
    with toy_llm() as llm:
        for _ in range(40):
            stream = llm.stream(PROMPTS, PARAMS)
            pieces: list[StreamChunk] = []
            threads = [threading.Thread(target=lambda s=stream, p=pieces: p.extend(s)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(WAIT_S)
            ends = Counter(piece.index for piece in pieces if piece.output is not None)
            assert ends == dict.fromkeys(range(len(PROMPTS)), 1)
            tokens = Counter((piece.index, piece.sample) for piece in pieces for _ in piece.token_ids)
            assert set(tokens.values()) == {PARAMS.max_tokens}
        check_idle(llm)


@pytest.mark.usefixtures("busy_switching")
def test_close_from_another_thread_leaves_nothing_and_raises_nothing() -> None:
    raised: list[BaseException] = []

    def take(stream: Stream) -> None:
        try:
            for _ in stream:
                pass
        except BaseException as err:
            raised.append(err)

    with toy_llm() as llm:
        for _ in range(40):
            stream = llm.stream(PROMPTS, PARAMS)
            thread = threading.Thread(target=take, args=(stream,))
            thread.start()
            stream.cancel(1)
            stream.close()
            thread.join(WAIT_S)
            assert not raised
            check_idle(llm)
