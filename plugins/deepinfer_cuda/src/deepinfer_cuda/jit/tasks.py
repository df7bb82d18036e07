"""Every case of every factory for some architectures, worked off by processes behind a progress bar."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

import click
from attrs import frozen

Result = TypeVar("Result")


@frozen
class Task:
    """One case of one factory for one architecture, as text and numbers: workers import the factory themselves."""

    module: str
    factory: str
    case: int
    arch: str
    label: str


def tasks(area: str | None, arches: Sequence[str]) -> list[Task]:
    """What there is to compile, by area and name. Imports tilelang."""
    from deepinfer_cuda.jit.registry import factories

    return [
        Task(factory.make.__module__, factory.name, index, arch, factory.label(case))
        for factory in factories(area)
        for index, case in enumerate(factory.cases)
        for arch in arches
    ]


def check_area(area: str | None) -> None:
    """Raises click.UsageError for a name that no area has."""
    from deepinfer_cuda.jit.registry import areas

    if area is not None and area not in areas():
        raise click.UsageError(f"no area {area!r}; there are {', '.join(areas()) or 'none'}")


def run_all(chosen: Sequence[Task], work: Callable[[Task], Result], jobs: int, label: str) -> list[tuple[Task, Result]]:
    """``work`` on each task in ``jobs`` processes; the results in the order of ``chosen``."""
    if not chosen:
        return []
    # spawn: a child of fork would have the locks of tilelang's threads, and CUDA where the parent has a context.
    with (
        ProcessPoolExecutor(min(jobs, len(chosen)), mp_context=get_context("spawn")) as pool,
        click.progressbar(length=len(chosen), label=label, file=sys.stderr) as bar,
    ):
        futures = [pool.submit(work, task) for task in chosen]
        for _ in as_completed(futures):
            bar.update(1)
    return [(task, future.result()) for task, future in zip(chosen, futures, strict=True)]
