"""OpenTelemetry spans: one for each request with its times in the queue, in prefill and in decode, one for each step.

Begin and end of a span are when these things happened, told afterwards; the loop itself makes no span. Phases of a step
are attributes: two steps overlap, so the phases of one are no spans behind each other.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any, Self

from deepinfer_core.errors import LibraryMissing, OutputError

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView
    from deepinfer_core.types import RequestReport, StepReport

GLOBAL = "global"
"""In place of a file: the tracer provider that the application has set."""
NAME = "deepinfer"


class Traces:
    """A part of the observer.

    :param tracer: Of OpenTelemetry.
    :param provider: To be shut down at the end; None: it is the application's.
    """

    name = "traces"

    def __init__(
        self, tracer: Any, provider: Any = None, stream: IO[str] | None = None, *, emulated: bool = False
    ) -> None:
        self._mark: dict[str, Any] = {"di.emulated": True} if emulated else {}
        self._tracer = tracer
        self._provider = provider
        self._stream = stream

    @classmethod
    def open(cls, path: str, *, emulated: bool = False) -> Self:
        """Spans go to the file at ``path``, one JSON object per line. Raises OutputError, LibraryMissing."""
        try:
            from opentelemetry import trace

            if path == GLOBAL:
                return cls(trace.get_tracer(NAME), emulated=emulated)
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExportResult
        except ImportError as err:
            raise LibraryMissing(
                "traces need the packages opentelemetry-api and opentelemetry-sdk",
                reason=str(err),
                remedy="pip install 'deepinfer-metrics[traces]', or leave --trace-file out",
                details={"package": "opentelemetry-sdk"},
            ) from err
        try:
            stream = open(path, "a", encoding="utf-8")  # noqa: SIM115  # close has it
        except OSError as err:
            raise OutputError(
                f"cannot write {path}",
                reason=err.strerror or str(err),
                remedy="check --trace-file",
                details={"path": path},
            ) from err

        class Exporter(ConsoleSpanExporter):
            """Tells once what cannot be written; the library would print a traceback for each batch."""

            told = False

            def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
                try:
                    return super().export(spans)
                except OSError as err:
                    if not self.told:
                        self.told = True
                        sys.stderr.write(f"deepinfer: W_OBSERVER: cannot write {path}: {err.strerror or err}\n")
                    return SpanExportResult.FAILURE

        provider = TracerProvider(resource=Resource.create({"service.name": NAME}))
        exporter = Exporter(out=stream, formatter=lambda span: span.to_json(indent=None) + "\n")
        provider.add_span_processor(BatchSpanProcessor(exporter))  # written by a thread of its own
        return cls(provider.get_tracer(NAME), provider, stream, emulated=emulated)

    def ready(self, engine: EngineView) -> None:
        """Nothing to say yet."""

    def step(self, step: StepReport) -> None:
        now = time.time_ns()
        attributes: dict[str, Any] = {f"di.phase.{name}_s": seconds for name, seconds in step.phases.items() if seconds}
        attributes |= {"di.kind": step.kind, "di.requests": step.num_reqs, "di.rows": step.num_tokens, **self._mark}
        self._span("di.step", now - _ns(step.seconds), now, attributes)

    def ended(self, request: RequestReport) -> None:
        end = time.time_ns()
        start = end - _ns(request.total_s)
        attributes: dict[str, Any] = {
            "di.request_id": request.request_id,
            "di.sample": request.sample,
            "di.finish_reason": request.finish_reason,
            "di.prompt_tokens": request.prompt_tokens,
            "di.cached_tokens": request.cached_tokens,
            "di.output_tokens": request.output_tokens,
            **self._mark,
        }
        from opentelemetry import trace

        whole = self._tracer.start_span("di.request", start_time=start, attributes=attributes)
        inside = trace.set_span_in_context(whole)
        marks = [("di.queue", request.queue_s), ("di.prefill", request.ttft_s), ("di.decode", request.total_s)]
        begin = start
        for name, until_s in marks:
            if until_s is not None:
                until = start + _ns(until_s)
                self._span(name, begin, max(begin, until), {}, inside)
                begin = max(begin, until)
        whole.end(end_time=end)

    def close(self) -> None:
        """Write what is left. Idempotent."""
        provider, self._provider = self._provider, None
        if provider is not None:
            provider.shutdown()
        if self._stream is not None:
            self._stream.close()

    def _span(self, name: str, start: int, end: int, attributes: dict[str, Any], context: Any = None) -> None:
        self._tracer.start_span(name, context=context, start_time=start, attributes=attributes).end(end_time=end)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
