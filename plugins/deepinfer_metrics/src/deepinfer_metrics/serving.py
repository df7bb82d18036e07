"""Metrics and health of one engine, fed and served."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from deepinfer_core.errors import LibraryMissing
from deepinfer_metrics.health import Health
from deepinfer_metrics.server import Server

if TYPE_CHECKING:
    from deepinfer_core.interfaces import EngineView
    from deepinfer_core.types import RequestReport, StepReport
    from deepinfer_metrics.metrics import Metrics


class Serving:
    """A part of the observer."""

    name = "metrics"

    def __init__(self, metrics: Metrics, health: Health, server: Server) -> None:
        self.metrics = metrics
        self.health = health
        self.server = server

    @classmethod
    def start(cls, host: str, port: int, *, is_public: bool, emulated: bool = False) -> Self:
        """Listen now: ``/startup`` is answered while the model loads. Raises ConfigError, LibraryMissing."""
        try:
            from deepinfer_metrics.metrics import Metrics
        except ImportError as err:
            raise LibraryMissing(
                "metrics need the package prometheus-client",
                reason=str(err),
                remedy="pip install prometheus-client, or leave --metrics-port out",
                details={"package": "prometheus-client"},
            ) from err
        metrics, health = Metrics(emulated=emulated), Health()
        checks = {"/live": health.live, "/ready": health.ready, "/startup": health.startup}
        server = Server(host, port, metrics.text, checks, is_public=is_public)
        shown = f"[{host}]" if ":" in host else host
        sys.stderr.write(f"deepinfer: metrics: http://{shown}:{server.port}/metrics\n")
        return cls(metrics, health, server)

    def ready(self, engine: EngineView) -> None:
        self.metrics.ready(engine)
        self.health.started(engine)

    def step(self, step: StepReport) -> None:
        self.metrics.step(step)
        self.health.step(step.seconds)

    def ended(self, request: RequestReport) -> None:
        self.metrics.ended(request)

    def close(self) -> None:
        self.health.close()
        self.server.close()
