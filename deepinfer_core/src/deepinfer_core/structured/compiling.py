"""Worker threads that compile grammars (``spec/sampling.md`` 3.2).

The engine thread asks and looks; workers compile and note the result. Requests for one grammar share its job. A thread
cannot be killed: one whose compile exceeds the limit is *stuck* until it comes back, and when all are, new grammars are
refused. The threads are daemons: a stuck one holds up neither :meth:`CompileService.close` nor the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from attrs import define, frozen

from deepinfer_core.errors import DeepInferError
from deepinfer_core.interfaces import Grammar, GrammarEngine
from deepinfer_core.structured.cache import GrammarCache, Key
from deepinfer_core.structured.forms import StructuredOutput


def now() -> float:
    """Seconds of a clock that only goes forward."""
    return time.monotonic()


class NoCapacity(Exception):
    """Every worker is stuck, or the system gives no thread to work in."""


@define(eq=False)
class Job:
    """One grammar that is wanted. The service's lock guards it until ``is_done``; then nothing changes any more."""

    wanted: StructuredOutput
    waiters: int = 1
    started_s: float | None = None
    """When a worker took it; None: it waits for one."""
    is_done: bool = False
    grammar: Grammar | None = None
    error: BaseException | None = None

    @property
    def key(self) -> Key:
        return self.wanted.schema_type, self.wanted.schema


@frozen
class CompileCounts:
    """What the service did so far."""

    compiled: int
    cached: int
    failed: int
    stuck: int
    """Workers that are stuck now."""


class CompileService:
    """Compiles with ``workers`` threads, which start when they are needed.

    :param make_engine: Makes the grammar engine; called once, by the first worker, on the first job's time.
    :param timeout_s: A compile that takes longer has a stuck worker.
    """

    def __init__(
        self, make_engine: Callable[[], GrammarEngine], *, workers: int, timeout_s: float, cache: GrammarCache
    ) -> None:
        self.workers = workers
        self.timeout_s = timeout_s
        self._make_engine = make_engine
        self._engine: GrammarEngine | None = None
        self._engine_error: BaseException | None = None
        self._engine_lock = threading.Lock()
        self._cache = cache
        self._work = threading.Condition()
        self._queue: deque[Job] = deque()
        self._jobs: dict[Key, Job] = {}
        """Queued and running ones."""
        self._running: dict[threading.Thread, Job] = {}
        self._threads: list[threading.Thread] = []
        self._news = threading.Event()
        self._closed = False
        self._compiled = self._cached = self._failed = 0

    def ask(self, wanted: StructuredOutput) -> Job:
        """The job of a grammar, done already if it is cached. Raises NoCapacity."""
        job = Job(wanted)
        with self._work:
            job.grammar = self._cache.get(job.key)
            if job.grammar is not None:
                self._cached += 1
                job.is_done = True
                return job
            if self._num_stuck() >= self.workers:
                raise NoCapacity
            shared = self._jobs.get(job.key)
            if shared is not None:
                shared.waiters += 1
                return shared
            self._jobs[job.key] = job
            self._queue.append(job)
            if len(self._threads) - len(self._running) < len(self._queue) and len(self._threads) < self.workers:
                thread = threading.Thread(target=self._run, name="deepinfer-grammar", daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system gives no more threads: those that there are do the work
                    if not self._threads:
                        del self._jobs[job.key]
                        self._queue.remove(job)
                        raise NoCapacity from None
                else:
                    self._threads.append(thread)
            self._work.notify()
        return job

    def leave(self, job: Job) -> None:
        """One request less waits for ``job``; one that nobody waits for is not started."""
        with self._work:
            job.waiters -= 1

    def is_exhausted(self) -> bool:
        """Whether no worker is left that could take a job."""
        with self._work:
            return self._num_stuck() >= self.workers

    def wait(self, timeout_s: float) -> None:
        """Until a job is done that :meth:`look` has not been told of, or for ``timeout_s``."""
        self._news.wait(timeout_s)

    def look(self) -> None:
        """Call it before looking at jobs: what is done later ends the next :meth:`wait`."""
        self._news.clear()

    def counts(self) -> CompileCounts:
        with self._work:
            return CompileCounts(self._compiled, self._cached, self._failed, self._num_stuck())

    def close(self) -> None:
        """Take no more jobs; idle workers end, busy ones when they come back. Idempotent."""
        with self._work:
            self._closed = True
            self._queue.clear()
            self._work.notify_all()
            idle = [thread for thread in self._threads if thread not in self._running]
        for thread in idle:
            thread.join()

    def _num_stuck(self) -> int:
        late = now() - self.timeout_s
        return sum(job.started_s is not None and job.started_s <= late for job in self._running.values())

    def _run(self) -> None:
        me = threading.current_thread()
        while True:
            with self._work:
                while not self._queue and not self._closed:
                    self._work.wait()
                if self._closed:
                    return
                job = self._queue.popleft()
                if job.waiters <= 0:
                    del self._jobs[job.key]
                    continue
                job.started_s = now()
                self._running[me] = job
            grammar: Grammar | None = None
            error: BaseException | None = None
            try:
                grammar = self._compile(job)
            except BaseException as exc:  # also SystemExit: whatever a plugin raises ends the requests of this job only
                error = exc
            with self._work:
                self._note(job, grammar, error)
                del self._running[me]
            self._news.set()

    def _compile(self, job: Job) -> Grammar:
        from deepinfer_core.pipeline.sampled import wrong_step_return  # the records come with it

        grammar = self._grammar_engine().compile(job.wanted.for_engine())
        if not isinstance(grammar, Grammar):
            got = "None" if grammar is None else type(grammar).__name__
            raise wrong_step_return("grammar.compile", "", got, "a Grammar")
        return grammar

    def _grammar_engine(self) -> GrammarEngine:
        """Made once; a failure is remembered, since a plugin is not tried twice."""
        with self._engine_lock:
            if self._engine is None and self._engine_error is None:
                try:
                    self._engine = self._make_engine()
                except BaseException as exc:
                    self._engine_error = exc
            if self._engine is not None:
                return self._engine
            raise EngineNotMade from self._engine_error

    def _note(self, job: Job, grammar: Grammar | None, error: BaseException | None) -> None:
        del self._jobs[job.key]
        if grammar is not None:
            try:
                self._cache.put(job.key, grammar)
            except Exception as exc:  # its ``nbytes`` is the plugin's code too
                grammar, error = None, exc
        job.grammar, job.error = grammar, error
        self._compiled += grammar is not None
        self._failed += grammar is None
        job.is_done = True


class EngineNotMade(Exception):
    """The grammar engine could not be made; ``__cause__`` says why."""

    @property
    def error(self) -> DeepInferError | None:
        return self.__cause__ if isinstance(self.__cause__, DeepInferError) else None
