"""One run of the kit: the rules that hold while pytest runs its tests. Registered only when the kit is asked for."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import asdict

from deepinfer_core.conformance.failures import ConformanceFailure
from deepinfer_core.conformance.kinds import COMMON, KINDS, option_names, option_of
from deepinfer_core.conformance.known_failures import KnownFailuresError, read_known_failures, unmatched
from deepinfer_core.conformance.options import check_options, option
from deepinfer_core.conformance.recorder import Recorder
from deepinfer_core.conformance.selection import (
    Collected,
    facts_of,
    kind_of,
    partial_reasons,
    skip_unclaimed,
    within_level,
)
from deepinfer_core.conformance.settings_file import settle_settings
from deepinfer_core.conformance.subject import Subject, find_subject, refusal
from deepinfer_core.conformance.time_limit import TimeLimitReached, time_limit
from deepinfer_core.conformance.told_once import ToldOnce
from deepinfer_core.errors import DeepInferError

SUBJECT = pytest.StashKey[Subject]()
"""In ``config.stash``: the plugin under test."""
NOTES = pytest.StashKey[dict[str, Any]]()
"""In ``item.stash``: seeds used, checks to make behind the test, tolerances measured."""
_PROPERTY = "deepinfer_conformance"


class Kit:
    """Hooks of one run."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.collected = Collected()
        self.recorder: Recorder | None = None
        self.limit_s = 0.0
        self.told = ToldOnce()

    @property
    def subject(self) -> Subject:
        return self.config.stash[SUBJECT]

    @property
    def is_worker(self) -> bool:
        return hasattr(self.config, "workerinput")

    # --- start ----------------------------------------------------------------------------------------------

    def pytest_configure(self, config: pytest.Config) -> None:
        """Settle what is tested. Bad input ends the run here."""
        config.addinivalue_line("markers", "level(name): the least level of the kit that runs the test")
        config.addinivalue_line("markers", "needs(*claims): skipped unless the plugin claims all of them")
        config.addinivalue_line("markers", "op(*ids): ops that the test judges")
        config.addinivalue_line("markers", "hook(*names): hooks of the plugin whose answers the test judges")
        chosen = {kind: str(option(config, kind)) for kind in KINDS if option(config, kind) is not None}
        if not chosen:
            raise pytest.UsageError(f"the conformance kit needs the name of a plugin: one of {option_names()}")
        if len(chosen) > 1:
            given = " and ".join(option_of(kind) for kind in chosen)
            raise pytest.UsageError(
                f"{given} are two runs of the conformance kit, with a report each; give one of them"
            )
        [(kind, name)] = chosen.items()
        check_options(config, kind)
        settle_settings(config)
        self.limit_s = float(str(option(config, "time_limit")))
        named = option(config, "known_failures")
        try:
            self.known = read_known_failures(Path(str(named)) if named is not None else None)
            config.stash[SUBJECT] = find_subject(kind, name, emulate=bool(option(config, "emulate")))
        except KnownFailuresError as exc:
            raise pytest.UsageError(str(exc)) from exc
        except DeepInferError as exc:
            pytest.exit(str(exc), returncode=exc.exit_status)
        if not self.is_worker:
            self.recorder = Recorder(config, self.subject, self.known)
            self.recorder.begin()

    def pytest_sessionstart(self) -> None:
        """Refuse a backend that cannot run on this host, before any test."""
        if self.is_worker or self.config.option.collectonly:
            return
        refused = refusal(self.subject)
        if refused is not None:
            pytest.exit(str(refused), returncode=refused.exit_status)

    def pytest_report_header(self) -> str:
        record, level = self.subject.record, option(self.config, "level")
        how = ", EMULATED on the processor" if self.subject.manager.config.emulate else ""
        return f"conformance: {record.title}, level {level}, {len(self.subject.claims)} claims{how}"

    # --- collection -----------------------------------------------------------------------------------------

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Tests of other kinds are not there."""
        kind = kind_of(collection_path)
        return True if kind not in (None, COMMON, self.subject.kind) else None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Iterator[None]:
        """Level and claims first; then whatever other plugins take away is seen, and reported."""
        kind, level = self.subject.kind, str(option(self.config, "level"))
        facts = {item: facts_of(item) for item in items if kind_of(item.path) in (COMMON, kind)}
        ids = [fact.test for fact in facts.values()]
        reasons = partial_reasons(kind, self.config.args, {item.path for item in facts}, 0)
        stale = unmatched(self.known, ids) if not reasons else []
        if stale and not self.is_worker:  # the end of a worker would be taken for a crash
            raise pytest.UsageError(f"known failures name tests that do not exist: {', '.join(stale)}")
        items[:] = [item for item in items if item not in facts or within_level(facts[item], level)]
        meant = [item for item in items if item in facts]
        for item in meant:
            item.stash[NOTES] = {"seeds": [], "checks": [], "tolerances": {}}
            item.user_properties.append((_PROPERTY, facts[item].as_record()))
            skip_unclaimed(item, facts[item], self.subject)
            for entry in self.known:
                if entry.matches(facts[item].test):
                    text = f"{entry.reason} ({entry.issue})"
                    item.add_marker(pytest.mark.xfail(reason=text, strict=True))
        yield
        left_out = [facts[item].test for item in meant if item not in set(items)]
        reasons = partial_reasons(kind, self.config.args, {item.path for item in facts}, len(left_out))
        self.collected = Collected([fact.as_record() for fact in facts.values()], left_out, reasons, stale)

    # --- tests ----------------------------------------------------------------------------------------------

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """Making the plugin under test may hang as well."""
        with time_limit(self.limit_s):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, None, None]:
        with time_limit(self.limit_s):
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: pytest.Function) -> Generator[None, object, object]:
        """What a test leaves to be looked at behind it fails the test itself, and not its teardown."""
        result = yield
        for check in pyfuncitem.stash.get(NOTES, {"checks": []})["checks"]:
            check()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add what was measured, and the seeds of a failure."""
        report = yield
        notes = item.stash.get(NOTES, None)
        if notes is None:
            return report
        if call.when == "call":
            properties: Any = dict(item.user_properties)[_PROPERTY]
            properties["tolerances"] = list(notes["tolerances"].values())
        self.told.settle(item, call, report)
        if report.failed and notes["seeds"]:
            report.sections.append(("seeds", ", ".join(str(seed) for seed in notes["seeds"])))
        if call.excinfo is not None and not (call.when == "setup" and report.skipped):
            shown = call.excinfo.value
            kit_made = isinstance(shown, ConformanceFailure | TimeLimitReached | DeepInferError)
            report.user_properties = [
                *report.user_properties,
                ("deepinfer_failure", {"text": str(shown) if kit_made else call.excinfo.exconly(), "typed": kit_made}),
            ]
        return report

    # --- report ---------------------------------------------------------------------------------------------

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if self.recorder is not None:
            self.recorder.add(report)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of xdist is done: take what it collected."""
        data = getattr(node, "workeroutput", {}).get(_PROPERTY)
        if data is not None:
            self.collected = Collected(**data)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.is_worker:
            self.config.workeroutput[_PROPERTY] = asdict(self.collected)  # type: ignore[attr-defined]
        elif self.recorder is not None:
            self.recorder.finish(self.collected, int(exitstatus))
            if self.collected.stale:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self.recorder is not None:
            for line in self.recorder.summary_lines():
                terminalreporter.write_line(line)
