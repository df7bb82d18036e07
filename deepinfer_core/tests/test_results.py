"""Writing results: order, whole lines, progress for people only."""

from __future__ import annotations

import io
import json
from collections import deque

from deepinfer_core.cli.json_lines import json_line
from deepinfer_core.cli.progress import Progress
from deepinfer_core.cli.results import OrderedWriter
from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.requests.request import Request
from deepinfer_core.text.detokenizer import Detokenizer

TABLE = [bytes([value]) for value in range(256)]


def request(index: int, text: bytes = b"", *, done: bool = True) -> Request:
    made = Request(
        index=index,
        request_id=str(index),
        prompt="p",
        prompt_token_ids=(1,),
        params=SamplingParams(),
        seed=1,
        detokenizer=Detokenizer(TABLE),
        inbox=deque(),
    )
    for token in text:
        made.add(token)
    if done:
        made.finish("length", "max_tokens")
        made.close()
    return made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_results_are_written_in_order_as_soon_as_those_before_are() -> None:
    out = io.BytesIO()
    writer = OrderedWriter(out, "json")
    for index, lines in ((2, 0), (0, 1), (3, 1), (1, 4)):
        writer.news(request(index, b"x"))
        assert len(out.getvalue().splitlines()) == lines
    assert [json.loads(line)["index"] for line in out.getvalue().splitlines()] == [0, 1, 2, 3]


def test_streaming_writes_the_first_unfinished_prompt_as_it_grows() -> None:
    out = io.BytesIO()
    writer = OrderedWriter(out, "text", streaming=True, headers=True)
    first, second = request(0, b"ab", done=False), request(1, b"xy", done=False)
    writer.news(second)
    writer.news(first)
    assert out.getvalue() == b"==> 1 <==\nab"
    first.add(ord("c"))
    first.finish("length")
    writer.news(first)
    assert out.getvalue() == b"==> 1 <==\nabc\n\n==> 2 <==\nxy"


def test_drain_writes_what_has_ended_and_what_was_cut_short() -> None:
    out = io.BytesIO()
    writer = OrderedWriter(out, "json")
    writer.news(request(3, b"x"))
    cut, unstarted = request(1, b"y"), request(2)
    writer.drain([cut, unstarted])
    assert [json.loads(line)["index"] for line in out.getvalue().splitlines()] == [1, 3]


def test_json_keeps_lone_surrogates_as_escapes() -> None:
    assert json.loads(json_line({"prompt": "a\udc80é"})) == {"prompt": "a\udc80é"}


def test_progress_is_silent_unless_on_a_terminal() -> None:
    quiet, loud = io.StringIO(), Terminal()
    for stream in (quiet, loud):
        progress = Progress(stream)
        progress.ended(request(0, b"abc"), 5)
        progress.close()
    assert quiet.getvalue() == ""
    assert "1 of 5 prompts, 3 tokens, " in loud.getvalue()
    assert loud.getvalue().endswith("\r")
