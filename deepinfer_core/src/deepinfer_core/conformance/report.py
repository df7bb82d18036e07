"""The report of a run: a document of plain data, and its files. It names no host, no person and no folder.

Form ``deepinfer-conformance`` 1; ``report.schema.json`` beside this module is its JSON schema.
"""

from __future__ import annotations

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepinfer_core import API_VERSION
from deepinfer_core.conformance.kinds import LEVELS
from deepinfer_core.conformance.known_failures import KnownFailure
from deepinfer_core.conformance.selection import Collected
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.whole_file import write_whole

if TYPE_CHECKING:
    from deepinfer_core.conformance.recorder import Outcome

FORM, VERSION = "deepinfer-conformance", 1
_LIBRARIES = ("deepinfer-contracts", "deepinfer-native", "deepinfer-cpu", "torch", "numpy", "pytest")


def document(
    *,
    subject: Subject,
    level: str,
    outcomes: Sequence[Outcome],
    collected: Collected,
    known: Sequence[KnownFailure],
    complete: bool,
    started: float,
    seconds: float,
) -> dict[str, Any]:
    """The whole report as JSON-serialisable data."""
    record = subject.record
    counts = Counter(outcome.outcome for outcome in outcomes)
    partial = list(collected.partial)
    return {
        "form": FORM,
        "version": VERSION,
        "subject": {
            "kind": subject.kind,
            "name": subject.name,
            "summary": record.table.summary,
            "distribution": record.distribution,
            "version": record.version,
            "entry_point": record.entry.value,
            "manifest_sha256": subject.manifest.sha256,
            "api": subject.manifest.api,
            **({"emulated": True} if subject.manager.config.emulate else {}),
        },
        "core": {
            "version": _version("deepinfer-core"),
            "api": f"{API_VERSION[0]}.{API_VERSION[1]}",
            "contracts": _chains(),
            "libraries": {name: _version(name) for name in _LIBRARIES},
        },
        "machine": {
            "system": platform.system(),
            "architecture": platform.machine(),
            "python": f"{platform.python_implementation()} {platform.python_version()}",
            "processors": os.cpu_count() or 0,
            "optimised": not __debug__,
        },
        "started": datetime.fromtimestamp(started, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round(seconds, 3),
        "level": level,
        "complete": complete,
        "partial": partial,
        "left_out": list(collected.left_out),
        "tests": [_test(outcome) for outcome in outcomes],
        "worst": _worst(outcomes),
        "claims": _claims(subject, outcomes, collected),
        "known_failures": [{"test": k.test, "reason": k.reason, "issue": k.issue} for k in known],
        "counts": {name: counts.get(name, 0) for name in ("passed", "failed", "error", "skipped", "known failure")},
        "verdict": _verdict(counts, level, complete, partial, collected.stale),
    }


def write(data: Mapping[str, Any], path: Path) -> None:
    """Write the report as JSON or HTML, by the name of the file; a reader sees the old file or the whole new one."""
    if path.suffix == ".html":
        from deepinfer_core.conformance.page import render

        text = render(data)
    else:
        text = json.dumps(data, indent=1, ensure_ascii=False) + "\n"
    write_whole(path, text)


def within(test: Mapping[str, Any], level: str) -> bool:
    """Whether a collected test belongs to the level."""
    return LEVELS.index(test["level"]) <= LEVELS.index(level)


def _test(outcome: Outcome) -> dict[str, Any]:
    return {
        **outcome.facts,
        "outcome": outcome.outcome or "not run",
        "reason": without_folders(outcome.reason),
        "typed": outcome.typed,
        "seconds": round(outcome.seconds, 4),
        "tolerances": outcome.tolerances,
    }


def _worst(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The farthest measured of each op, output and class, and the test that measured it: what drifts shows in time."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for outcome in outcomes:
        for measured in outcome.tolerances:
            key = (measured["op"], measured["output"], measured["class"])
            if key not in found or measured["measured"] > found[key]["measured"]:
                found[key] = {**measured, "test": outcome.facts["test"]}
    return [found[key] for key in sorted(found)]


def _claims(subject: Subject, outcomes: Sequence[Outcome], collected: Collected) -> list[dict[str, Any]]:
    """Each claim: tested (with what came out), in tests of a higher level, or without any test in the kit."""
    result = []
    for claim in sorted(subject.claims):
        ran = [o.outcome for o in outcomes if claim in o.facts["needs"] and o.outcome not in ("skipped", "")]
        exist = any(claim in test["needs"] for test in collected.tests)
        status = "tested" if ran else "tested at a higher level" if exist else "claimed, not tested"
        result.append({"claim": claim, "status": status, "tests": len(ran), "passed": ran.count("passed")})
    return result


def _verdict(
    counts: Mapping[str, int], level: str, complete: bool, partial: Sequence[str], stale: Sequence[str]
) -> dict[str, Any]:
    """What the run says of the plugin, as a word and as a sentence."""
    if stale:
        return {"word": "failed", "text": f"failed: known failures name tests that do not exist: {', '.join(stale)}"}
    bad = counts.get("failed", 0) + counts.get("error", 0)
    known = counts.get("known failure", 0)
    word = "failed" if bad else "incomplete" if not complete else "partial" if partial else "passed"
    text = {
        "failed": f"failed level {level}: {bad} of {sum(counts.values())} tests",
        "incomplete": f"incomplete: the run of level {level} did not end",
        "partial": f"partial: {'; '.join(partial)}",
        "passed": f"passed level {level}: {counts.get('passed', 0)} tests",
    }[word]
    if known:
        text += f", {known} known failure{'' if known == 1 else 's'}"
    return {"word": word, "text": text}


def without_folders(text: str) -> str:
    """A text without the folders of this machine."""
    import site

    folders = [os.getcwd(), str(Path.home()), *site.getsitepackages(), str(Path(__file__).parents[2])]
    for folder in sorted(set(folders), key=len, reverse=True):
        if len(folder) > 1:
            text = re.sub(re.escape(folder) + r"(?=[/\\\s'\":,)]|$)", "...", text)
    return text


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _chains() -> dict[str, str]:
    """Record -> ``<fields> <chain>`` of this installation's contracts."""
    from deepinfer_contracts import CONTRACTS

    return {name: f"{len(info.fields)} {info.layout_hash:016x}" for name, info in sorted(CONTRACTS.items())}
