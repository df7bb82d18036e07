"""Settings of observation (table ``[observe]`` of the file). All is off by default."""

from __future__ import annotations

from attrs import frozen

from deepinfer_core.settings import setting

EXTENSION = "metrics"
"""The extension that these settings ask for; a first-party name."""
NEEDED = {"metrics_host": "metrics_port", "metrics_public": "metrics_port", "step_log_interval": "step_log"}
"""Setting -> the one without which it does nothing."""


@frozen
class ObserveSettings:
    """What the extension ``metrics`` of ``deepinfer-metrics`` offers. Any of them loads it."""

    metrics_port: int | None = setting(
        None,
        "Serve metrics and health on this port, 0: any that is free. Needs deepinfer-metrics.",
        kind="integer",
        minimum=0,
        maximum=65535,
        env="DEEPINFER_METRICS_PORT",
    )
    metrics_host: str = setting(
        "127.0.0.1", "Address of the port; one that others reach also needs metrics_public.", kind="text"
    )
    metrics_public: bool = setting(
        False, "Allow an address that other machines reach; whoever reaches it can read.", kind="boolean"
    )
    step_log: str | None = setting(
        None, "Write a JSON line every so many steps into this file, - for standard error.", kind="text"
    )
    step_log_interval: int = setting(
        100,
        "Steps between two lines of step_log.",
        kind="integer",
        minimum=1,
        maximum=2**31 - 1,
        env="DEEPINFER_LOGGING_INTERVAL_STEP",
    )
    trace_file: str | None = setting(
        None,
        "Write OpenTelemetry spans of requests and steps into this file, as JSON lines; global: to the provider that "
        "the application has set.",
        kind="text",
    )

    @property
    def is_on(self) -> bool:
        """Whether anything is wanted."""
        return self.metrics_port is not None or self.step_log is not None or self.trace_file is not None
