"""A grid of points in a folder: one whole file for each, so that a sweep can be cut short and gone on with.

::

    DIR/sweep.json      what all points have in common; another run in this folder must have the same
    DIR/b8-p512-k0.json one report with one point, written when the point is finished
    DIR/points.csv      a line for each finished point, written anew after each
    DIR/.lock           held while a sweep writes here
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from attrs import define, field

from deepinfer_bench.report import as_csv, as_json, problem_of, write
from deepinfer_bench.workload import Shape
from deepinfer_core.cli.streams import unwritable
from deepinfer_core.errors import CommandUsageError, ConfigError, DeepInferError, InvalidInputFile
from deepinfer_core.whole_file import SUFFIX

PLAN, TABLE, LOCK = "sweep.json", "points.csv", ".lock"


def grid(batches: Sequence[int], prompts: Sequence[int], drafts: Sequence[int]) -> list[Shape]:
    """Every combination once. Most drafts first: what does not fit with them is told before anything is measured."""
    return [
        Shape(batch, prompt, draft)
        for draft in sorted(set(drafts), reverse=True)
        for batch in sorted(set(batches))
        for prompt in sorted(set(prompts))
    ]


def by_drafts(shapes: Sequence[Shape]) -> Iterator[tuple[int, list[Shape]]]:
    """Shapes that one engine runs: those with one number of drafts."""
    for drafts, group in groupby(shapes, key=lambda shape: shape.draft_tokens):
        yield drafts, list(group)


@define
class SweepFolder:
    """The files of a sweep. Make one with :meth:`opened`."""

    path: Path
    reports: dict[str, dict[str, Any]] = field(factory=dict)
    """Name of a point -> its report, of those that are finished."""

    @classmethod
    @contextlib.contextmanager
    def opened(cls, path: Path, plan: Mapping[str, Any]) -> Iterator[SweepFolder]:
        """The folder, which nobody else writes meanwhile, with what an earlier run left there.

        :raises OutputError: the folder cannot be written.
        :raises CommandUsageError: another process writes there, or the folder holds something else.
        :raises ConfigError: an earlier run there measured something else; names what differs.
        :raises InvalidInputFile: a file of an earlier run is no report.
        """
        try:
            if path.exists() and not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, "it is no folder")
            path.mkdir(parents=True, exist_ok=True)
            lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as err:
            raise unwritable(str(path), err, "give a new folder in a place that can be written") from err
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as err:
                raise CommandUsageError(
                    f"another sweep writes to {path}",
                    reason="two would measure each other, and the same points",
                    remedy="wait for it, or give another folder",
                ) from err
            folder = cls(path)
            folder._take_up(plan)
            yield folder
        finally:
            os.close(lock)

    def _take_up(self, plan: Mapping[str, Any]) -> None:
        for left in self.path.glob(f".*{SUFFIX}"):  # of a run that was killed; the lock says that none is at work
            left.unlink(missing_ok=True)
        file = self.path / PLAN
        if not file.exists():
            others = sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith("."))
            if others:
                raise CommandUsageError(
                    f"{self.path} holds {others[0]}, and no sweep",
                    reason="a sweep keeps its files apart from others",
                    remedy="give a new folder",
                )
            write(file, as_json(plan))
            return
        earlier = _read(file)
        different = sorted(_differences(earlier, json.loads(json.dumps(plan))))
        if different:
            name, before, now = different[0]
            raise ConfigError(
                f"the sweep in {self.path} was made with {name} {before}, this one has {now}",
                reason="points of two kinds in one folder could not be compared"
                + (f"; {len(different)} values differ" if len(different) > 1 else ""),
                remedy="give the same options as before, or a new folder",
                details={"differences": [list(item) for item in different]},
            )
        for entry in sorted(self.path.glob("b*-p*-k*.json")):
            found = _read(entry)
            problem = problem_of(found)
            if problem or [point["name"] for point in found["points"]] != [entry.stem]:
                raise _no_report(entry, problem or "it is no report of that point alone")
            if not found["points"][0].get("error"):
                self.reports[entry.stem] = found

    def keep(self, name: str, report: dict[str, Any]) -> None:
        """A point is finished. One that failed is written, and measured again by the next run."""
        write(self.path / f"{name}.json", as_json(report))
        self.reports[name] = report
        self.write_table()

    def write_table(self) -> None:
        write(self.path / TABLE, as_csv(self.points))

    @property
    def points(self) -> list[dict[str, Any]]:
        """Of all reports, by batch, prompt and drafts."""
        found = [report["points"][0] for report in self.reports.values()]
        return sorted(found, key=lambda point: (point["draft_tokens"], point["prompt_tokens"], point["batch"]))


def failed_point(shape: Shape, error: DeepInferError) -> dict[str, Any]:
    """The record of a point that could not be measured."""
    return {
        "name": shape.name,
        "batch": shape.batch,
        "prompt_tokens": shape.prompt_tokens,
        "draft_tokens": shape.draft_tokens,
        "prefill": None,
        "decode": None,
        "error": error.as_record(),
    }


def run_sweep(
    folder: SweepFolder,
    shapes: Sequence[Shape],
    open_engine: Callable[[Sequence[Shape]], contextlib.AbstractContextManager[Any]],
    measure: Callable[[Any, Shape], dict[str, Any]],
    report_of: Callable[[Any, dict[str, Any]], dict[str, Any]],
    tell: Callable[[str], None],
) -> int:
    """Measure what is missing; how many points failed.

    ``open_engine`` gives an engine for shapes of one number of drafts, and checks that all of them fit. A failed step
    may leave an engine that cannot go on, so the next point gets a new one.
    """
    failed = 0
    kept = sum(shape.name in folder.reports for shape in shapes)
    if kept:
        tell(f"{kept} of {len(shapes)} points are in {folder.path} already")
        folder.write_table()  # a run that was cut short may have left it behind the points
    for _, group in by_drafts(shapes):
        missing = [shape for shape in group if shape.name not in folder.reports]
        while missing:
            with open_engine(missing) as engine:
                while missing:
                    shape = missing.pop(0)
                    try:
                        point = measure(engine, shape)
                    except DeepInferError as error:
                        failed += 1
                        folder.keep(shape.name, report_of(engine, failed_point(shape, error)))
                        tell(f"{shape.name}: failed, {error.code}: {error.what}")
                        break
                    folder.keep(shape.name, report_of(engine, point))
    return failed


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except OSError as err:
        raise _no_report(path, err.strerror or str(err)) from err
    except (ValueError, RecursionError) as err:
        raise _no_report(path, str(err)) from err
    if not isinstance(found, dict):
        raise _no_report(path, f"it holds a {type(found).__name__}")
    return found


def _no_report(path: Path, reason: str) -> InvalidInputFile:
    return InvalidInputFile(
        f"cannot go on with {path}", reason=reason, remedy="remove the file to measure it again, or give a new folder"
    )


def _differences(before: Any, now: Any, name: str = "") -> Iterator[tuple[str, str, str]]:
    if isinstance(before, dict) and isinstance(now, dict):
        for key in {*before, *now}:
            yield from _differences(before.get(key), now.get(key), f"{name}.{key}" if name else key)
    elif before != now:
        yield name, _shown(before), _shown(now)


def _shown(value: Any) -> str:
    text = "nothing" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
