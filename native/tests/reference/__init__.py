"""A reference scheduler in plain Python: the decisions of ``spec/engine.md`` 1 to 5, written for reading.

It shares no code with the C core, and needs nothing but the standard library. The comparison tests give both the same
commands and compare every field that the core publishes; the benchmarks time it as the plain-Python peer.

    s = Scheduler(settings)            # `Settings`, or Settings.of(core_config)
    uid = s.submit([1, 2, 3], max_tokens=8)
    o = s.schedule_local()             # `Outputs`: one value a row in lists
    events = s.commit(o.step_id, [5])  # one sampled token a row -> [Event]
    s.step_done(o.step_id)
    s.abort([uid])

Time budgets (2.8) and measured corrections of the verification curve (7.2) are not here: `reference_cost` and
`reference_verify` of the package are their plain versions, with tests of their own.
"""

from reference.records import (
    ABORT_ACCEPTED,
    ABORT_FINISHED,
    ABORT_UNKNOWN,
    DECODE,
    EMPTY_PREFILL,
    TRY_PREFILL,
    Event,
    Outputs,
    Reason,
    Refused,
)
from reference.scheduler import Scheduler
from reference.settings import Settings

__all__ = [
    "ABORT_ACCEPTED",
    "ABORT_FINISHED",
    "ABORT_UNKNOWN",
    "DECODE",
    "EMPTY_PREFILL",
    "TRY_PREFILL",
    "Event",
    "Outputs",
    "Reason",
    "Refused",
    "Scheduler",
    "Settings",
]
