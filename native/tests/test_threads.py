"""Client threads submit and abort while the engine steps."""

import sys
import threading
from collections import Counter, defaultdict

import numpy as np
import pytest
from native_driver import Driver, small_config

from deepinfer_contracts import AbortStatus, EventFlags, FinishReason, SamplerOutput
from deepinfer_native import Core


@pytest.fixture
def fast_switching():
    """Threads change every 10 us, so that calls meet."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


class Engine:
    """Steps a core and keeps the raw event stream; who submitted what is compared afterwards."""

    def __init__(self, core):
        self.core = core
        self.tokens = Counter()
        self.ends = defaultdict(list)

    def feed(self, batch):
        for uid, token, flags, reason in zip(
            *(getattr(batch, n).tolist() for n in ("seq_uid", "token_id", "flags", "finish_reason")), strict=True
        ):
            self.tokens[uid] += token >= 0
            if flags & EventFlags.LAST:
                self.ends[uid].append(FinishReason(reason))

    def step(self):
        o = self.core.schedule_local()
        if o.num_reqs:
            n = o.num_reqs
            self.core.pack(o.step_id)
            self.core.pack_sampler(o.step_id)
            out = SamplerOutput(
                sampled_ids=np.ones(n, np.int32),
                sampled_logprob=np.zeros(n, np.float32),
                row_status=np.zeros(n, np.int8),
            )
            self.feed(self.core.commit(o.step_id, out))
            self.core.step_done(o.step_id)
        self.feed(self.core.poll_events())


def test_submits_and_aborts_from_threads_end_exactly_once(fast_switching):
    engine = Engine(Core(small_config(num_blocks=20, max_chunk=8)))
    core = engine.core
    started, finished = threading.Barrier(4), []
    asked, aborted = {}, set()

    def client(number):
        started.wait()
        for i in range(80):
            n = 1 + i % 7
            uid = core.submit([number, i % 50, 3] * (1 + i % 5), max_tokens=n)
            asked[uid] = n
            if i % 4 == 0 and core.abort([uid, uid + 10**6]) == [AbortStatus.ACCEPTED, AbortStatus.UNKNOWN]:
                aborted.add(uid)
        finished.append(number)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(3)]
    for t in threads:
        t.start()
    started.wait()
    while len(finished) < 3 or core.unfinished:
        engine.step()
    for t in threads:
        t.join()
    engine.step()
    core.check()
    core.audit()
    assert sorted(asked) == list(range(1, 241))
    assert {uid: len(ends) for uid, ends in engine.ends.items()} == dict.fromkeys(asked, 1)
    undisturbed = {uid: n for uid, n in asked.items() if uid not in aborted}
    assert {uid: engine.tokens[uid] for uid in undisturbed} == undisturbed
    assert {engine.ends[uid][0] for uid in undisturbed} == {FinishReason.LENGTH}
    assert FinishReason.ABORT in {engine.ends[uid][0] for uid in aborted}


def test_unfinished_may_be_read_from_another_thread(fast_switching):
    driver = Driver(small_config())
    for n in range(20):
        driver.submit([n] * 5, max_tokens=20, stop=())
    stop, seen = threading.Event(), []

    def watch():
        while not stop.is_set():
            seen.append(driver.core.unfinished)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        driver.run()
    finally:
        stop.set()
        thread.join()
    assert seen
    assert seen == sorted(seen, reverse=True)
