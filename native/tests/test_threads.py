"""Client threads submit and abort while the engine steps."""

import sys
import threading

from native_driver import Driver, Request, small_config

from deepinfer_contracts import FinishReason


def test_submits_and_aborts_from_threads_end_exactly_once():
    driver = Driver(small_config(depth=2, num_blocks=20, max_chunk=8))
    lock, started = threading.Lock(), threading.Barrier(4)
    done = []

    def client(number):
        started.wait()
        for i in range(60):
            prompt = [number, i % 50, 3] * (1 + i % 5)
            with lock:  # the follower must know the request before the engine reports it
                uid = driver.core.submit(prompt, max_tokens=1 + i % 7)
                driver.follower.add(Request(uid, prompt, 1 + i % 7, stop=()))
            if i % 5 == 0:
                driver.core.abort([uid, uid + 1000000])
        done.append(number)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for t in threads:
            t.start()
        started.wait()
        while len(done) < 3 or driver.core.unfinished:
            with lock:
                driver.step()
    finally:
        sys.setswitchinterval(interval)
        for t in threads:
            t.join()
    driver.run()
    reasons = [r.reason for r in driver.follower.requests.values()]
    assert len(reasons) == 180
    assert FinishReason.NONE not in reasons
    assert reasons.count(FinishReason.ABORT) <= 36
    driver.require_expected([r for r in driver.follower.requests.values() if r.reason != FinishReason.ABORT])


def test_stats_and_unfinished_may_be_read_from_another_thread():
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
    assert seen == sorted(seen, reverse=True)
