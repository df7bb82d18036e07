"""Requests that wait for their grammar, outside the scheduler, and are looked at once a step.

Everything here runs on the engine thread, under its lock, except :meth:`WaitingForGrammar.wait`. When a grammar
is there, each sample of its prompt gets a matcher of its own and goes to the scheduler; when it will not be there, all
of them end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import define, frozen

from deepinfer_core.assembly.parts import MakeGrammarEngine
from deepinfer_core.errors import DeepInferError
from deepinfer_core.interfaces import Grammar, Matcher
from deepinfer_core.pipeline.sampled import wrong_step_return
from deepinfer_core.requests.finish_detail import FinishDetail
from deepinfer_core.requests.request import Request
from deepinfer_core.structured import compiling, failures
from deepinfer_core.structured.cache import GrammarCache
from deepinfer_core.structured.compiling import CompileService, Job, NoCapacity
from deepinfer_core.structured.failures import Failure
from deepinfer_core.structured.forms import StructuredOutput
from deepinfer_core.structured.lifecycle import Lifecycle
from deepinfer_core.structured.progress import Progress
from deepinfer_core.text.tokenizer import Tokenizer

Start = Callable[[Request], object]
End = Callable[[Request, str, FinishDetail, DeepInferError | None], object]


@frozen
class GrammarLimits:
    """Of the settings. ``depth``: tokens that a matcher gives back at once, draft length + 2.

    ``in_order``: prompts start in the order in which they came, and nothing runs while one waits, so that which steps
    there are does not depend on the time of a compile.
    """

    workers: int
    timeout_s: float
    cache_bytes: int
    depth: int
    in_order: bool = False


@define(eq=False)
class Waiting:
    """The first sample of a prompt. ``job``: None where no worker was left for it."""

    request: Request
    wanted: StructuredOutput
    job: Job | None
    deadline_s: float


class WaitingForGrammar:
    """The grammar engine is made when the first request asks for one.

    :param choose: Chooses and loads the grammar engine's plugin; raises typed errors.
    :param vocab_size: Width of the logits.
    :param owners: Part -> plugin, for the text of failures.
    """

    def __init__(
        self,
        choose: Callable[[], MakeGrammarEngine],
        tokenizer: Tokenizer,
        vocab_size: int,
        limits: GrammarLimits,
        owners: Mapping[str, str],
    ) -> None:
        self._choose = choose
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._limits = limits
        self._owners = owners
        self._items: list[Waiting] = []
        self.service: CompileService | None = None
        self.timed_out = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    @property
    def holds_up(self) -> bool:
        """Whether no step may run now."""
        return self._limits.in_order and bool(self._items)

    def __len__(self) -> int:
        """Samples that wait."""
        return sum(not sample.finished for item in self._items for sample in item.request.samples)

    def require_engine(self) -> CompileService:
        """Raises NotSupported, PluginConflict or the plugin's own error where no grammar engine can be had."""
        if self.service is None:
            make, tokenizer, width = self._choose(), self._tokenizer, self._vocab_size
            self.service = CompileService(
                lambda: make(tokenizer, width),
                workers=self._limits.workers,
                timeout_s=self._limits.timeout_s,
                cache=GrammarCache(self._limits.cache_bytes),
            )
        return self.service

    def add(self, request: Request, wanted: StructuredOutput) -> None:
        """``request`` and its other samples wait for a grammar; :meth:`pump` starts or ends them."""
        service = self.require_engine()
        try:
            job: Job | None = service.ask(wanted)
        except NoCapacity:
            job = None
        self._items.append(Waiting(request, wanted, job, compiling.now() + self._limits.timeout_s))

    def pump(self, start: Start, end: End) -> None:
        """Start the prompts whose grammar is there, end those whose grammar will not be. Never waits."""
        if not self._items or self.service is None:
            return
        self.service.look()
        time_s, no_worker = compiling.now(), self.service.is_exhausted()
        for item in list(self._items):
            job, failure = item.job, self._failure(item, time_s, no_worker)
            if failure is None and job is not None and job.grammar is not None:
                failure = self._give_matchers(item, job.grammar)
            elif failure is None and self._limits.in_order:
                break  # those behind it start after it
            elif failure is None:
                continue
            self._remove(item)
            if failure is None:
                start(item.request)
            else:
                self._end(item, end, "grammar", failure.detail, failure.error)

    def abort(self, requests: Iterable[Request], end: End) -> None:
        """End those of ``requests`` that wait here."""
        if not self._items:
            return
        given_up = {id(request) for request in requests}
        for item in list(self._items):
            for sample in item.request.samples:
                if id(sample) in given_up and not sample.finished:
                    end(sample, "abort", FinishDetail.NONE, None)
            if all(sample.finished for sample in item.request.samples):
                self._remove(item)

    def stop(self, end: End, reason: str, error: DeepInferError | None) -> None:
        """End all."""
        for item in list(self._items):
            self._remove(item)
            self._end(item, end, reason, FinishDetail.NONE, error)

    def wait(self, timeout_s: float) -> None:
        """Until a grammar may be there, or for ``timeout_s``. Call it without the engine's lock."""
        service = self.service
        if service is not None:
            service.wait(timeout_s)

    def close(self) -> None:
        """Does not wait for a compile that runs. Idempotent."""
        if self.service is not None:
            self.service.close()

    def _failure(self, item: Waiting, time_s: float, no_worker: bool) -> Failure | None:
        """Why the prompt of ``item`` can wait no longer; None while it can, or when its grammar is there."""
        job, name, limits = item.job, item.request.request_id, self._limits
        kind = item.wanted.schema_type
        if job is not None and job.is_done:
            return None if job.error is None else failures.not_compiled(name, kind, job.error, self._owner)
        if time_s >= item.deadline_s:
            self.timed_out += 1
            return failures.compile_timeout(name, kind, limits.timeout_s)
        if job is None or (no_worker and job.started_s is None):
            return failures.no_capacity(name, limits.workers, limits.timeout_s)
        return None

    def _give_matchers(self, item: Waiting, grammar: Grammar) -> Failure | None:
        wanted = item.wanted
        for request in item.request.samples:
            try:
                matcher = grammar.matcher()
                if not isinstance(matcher, Matcher):
                    got = "None" if matcher is None else type(matcher).__name__
                    raise wrong_step_return("grammar.matcher", self._owner, got, "a Matcher")
            except Exception as err:  # the plugin boundary
                return failures.matcher_failed(request.request_id, "grammar.matcher", err, (), self._owner)
            lifecycle = Lifecycle(
                matcher,
                trigger=wanted.trigger_token_ids,
                bound=wanted.bound_token_id,
                eos_ids=request.eos_ids,
                token_bytes=self._tokenizer.token_bytes,
                depth=self._limits.depth,
            )
            forced = request.params.forced_token_ids
            request.grammar = Progress(lifecycle, request.request_id, request.eos_ids, self._owner, forced)
        return None

    def _remove(self, item: Waiting) -> None:
        self._items.remove(item)
        if item.job is not None and self.service is not None:
            self.service.leave(item.job)

    def _end(self, item: Waiting, end: End, reason: str, detail: FinishDetail, error: DeepInferError | None) -> None:
        for sample in item.request.samples:
            if not sample.finished:
                end(sample, reason, detail, error)

    @property
    def _owner(self) -> str:
        return self._owners.get("grammar", "")
