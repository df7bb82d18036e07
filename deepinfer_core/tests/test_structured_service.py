"""The compile service alone: threads, jobs, cache."""

from __future__ import annotations

import gc
import json
import threading
from typing import Any

import pytest
from engine_toys import EOS, byte_tokenizer, toy_llm
from grammar_toys import FakeClock, Gates, grammar_llm
from tiny_grammar import TinyEngine

from deepinfer_core.parameters.sampling_params import SamplingParams
from deepinfer_core.structured import compiling, manager
from deepinfer_core.structured.cache import GrammarCache
from deepinfer_core.structured.compiling import CompileService, NoCapacity
from deepinfer_core.structured.forms import StructuredOutput


def service_of(engine: Any, *, workers: int = 1, cache_bytes: int = 1 << 20, timeout_s: float = 20) -> CompileService:
    return CompileService(lambda: engine, workers=workers, timeout_s=timeout_s, cache=GrammarCache(cache_bytes))


def regex(text: str) -> StructuredOutput:
    return StructuredOutput("regex", text)


def finish(service: CompileService, *jobs: Any) -> None:
    for _ in range(1000):
        service.look()
        if all(job.is_done for job in jobs):
            return
        service.wait(60)
    raise AssertionError("jobs do not end")


def test_service_starts_no_more_threads_than_workers_and_none_without_work():
    engine = Gates().engine
    service = service_of(engine, workers=2)
    assert service._threads == []
    jobs = [service.ask(regex(f"slow{i}")) for i in range(5)]
    assert len(service._threads) <= 2
    engine.gate.set()
    finish(service, *jobs)
    service.close()
    service.close()
    for thread in service._threads:
        thread.join(60)
        assert not thread.is_alive()
        assert thread.daemon


def test_service_starts_no_job_that_nobody_waits_for():
    engine = Gates().engine
    service = service_of(engine)
    slow, left = service.ask(regex("slow")), service.ask(regex("left"))
    service.leave(left)
    last = service.ask(regex("last"))
    engine.gate.set()
    finish(service, slow, last)
    assert engine.compiled == ["slow", "last"]
    service.close()


def test_service_without_capacity_refuses(monkeypatch):
    clock = FakeClock()
    monkeypatch.setattr(compiling, "now", clock)
    engine = Gates().engine
    service = service_of(engine)
    slow, queued = service.ask(regex("slow")), service.ask(regex("queued"))
    assert engine.begun.acquire(timeout=60)
    assert not service.is_exhausted()
    clock.time_s += 20
    assert service.is_exhausted()
    assert (slow.started_s, queued.started_s) == (1000.0, None)
    with pytest.raises(NoCapacity):
        service.ask(regex("new"))
    engine.gate.set()
    finish(service, slow, queued)
    assert service.counts().stuck == 0
    assert not service.is_exhausted()
    service.close()


def test_service_that_gets_no_thread_refuses_and_works_once_there_is_one(monkeypatch):
    service = service_of(TinyEngine(byte_tokenizer(), 300))

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", none_left)
        with pytest.raises(NoCapacity):
            service.ask(regex("a"))
    job = service.ask(regex("a"))
    finish(service, job)
    assert job.grammar is not None
    service.close()


@pytest.mark.parametrize("failure", [RuntimeError("no"), SystemExit(3), MemoryError(), KeyboardInterrupt()])
def test_whatever_a_compile_raises_is_the_jobs_and_the_worker_goes_on(failure):
    class Raises(TinyEngine):
        def compile(self, so_args: Any) -> Any:
            if so_args["schema"] == "bad":
                raise failure
            return super().compile(so_args)

    service = service_of(Raises(byte_tokenizer(), 300))
    bad, good = service.ask(regex("bad")), service.ask(regex("good"))
    finish(service, bad, good)
    assert bad.error is failure
    assert good.grammar is not None
    assert (service.counts().compiled, service.counts().failed) == (1, 1)
    service.close()


def test_cache_gives_up_what_was_used_least_recently():
    class Sized:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

        def matcher(self) -> None:
            return None

    cache = GrammarCache(max_bytes=10_000, max_entries=3)
    a, b, c = (("regex", name) for name in "abc")
    for key in (a, b):
        cache.put(key, Sized(3000))
    assert cache.get(a) is not None
    cache.put(c, Sized(3000))
    assert (cache.get(b), len(cache)) == (None, 2)
    cache.put(("regex", "huge"), Sized(20_000))
    assert len(cache) == 2
    for name in "defg":
        cache.put(("regex", name), Sized(0))
    assert len(cache) == 3
    cache.put(("regex", "g"), Sized(10))
    assert cache.nbytes <= 10_000
    nothing = GrammarCache(0)
    nothing.put(a, Sized(0))
    assert len(nothing) == 0


def test_closed_llm_leaves_no_thread_and_no_engine_behind():
    before = threading.active_count()
    llm = toy_llm(parts={"grammar": TinyEngine})
    llm.generate(["a"], SamplingParams(regex="ab"))
    llm.close()
    del llm
    gc.collect()
    assert threading.active_count() == before


def test_environment_names_of_the_original_set_the_limits():
    from deepinfer_core.config import EngineConfig

    config = EngineConfig.resolve(
        environ={
            "DEEPINFER_SO_BUILDER_CPUS": "3",
            "DEEPINFER_XGRAMMAR_TIMEOUT": "7",
            "DEEPINFER_XGRAMMAR_CACHE_LIMIT_BYTES": "5MiB",
        }
    )
    assert (config.so_builder_cpus, config.so_timeout_s, config.so_cache_bytes) == (3, 7, 5 << 20)


def test_threads_are_no_more_than_processors(monkeypatch):
    monkeypatch.setattr(manager, "usable_cpus", lambda: 1)
    with grammar_llm(so_builder_cpus=8) as llm:
        assert llm.built.engine._grammars.waiting.require_engine().workers == 1
        assert json.loads(json.dumps(llm.times.as_record()))["grammar"] == 0
        assert EOS == 256
