"""``python -m deepinfer_cuda.jit.warm``: compile every case of every kernel into the cache, in several processes.

Needs no GPU where ``--arch`` is given: the cache can be made on one machine and carried to another.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

import click
from attrs import frozen

from deepinfer_core.errors import DeepInferError


@frozen
class Task:
    """One case of one factory for one architecture, as text and numbers: workers import the factory themselves."""

    module: str
    factory: str
    case: int
    arch: str
    label: str


def tasks(area: str | None, arches: Sequence[str]) -> list[Task]:
    """What there is to compile."""
    from deepinfer_cuda.jit.registry import factories

    return [
        Task(factory.make.__module__, factory.name, index, arch, factory.label(case))
        for arch in arches
        for factory in factories(area)
        for index, case in enumerate(factory.cases)
    ]


def run(task: Task) -> str:
    """Compile one task. Returns what went wrong, in one text, or nothing."""
    from deepinfer_cuda.jit.registry import find

    factory = find(task.module, task.factory)
    try:
        factory.build(task.arch, **factory.cases[task.case])
    except DeepInferError as exc:
        return f"{exc.what}\n  reason: {exc.reason}"
    except Exception as exc:  # a factory that refuses its own case
        return f"kernel {task.label} cannot be made for {task.arch}\n  reason: {type(exc).__name__}: {exc}"
    return ""


def warm(chosen: Sequence[Task], jobs: int) -> list[str]:
    """Compile ``chosen`` in ``jobs`` processes behind a progress bar. Returns the failures."""
    failures: list[str] = []
    if not chosen:
        return failures
    # spawn: a child of fork would have locks of tilelang's threads, and of CUDA where the parent has a context.
    with (
        ProcessPoolExecutor(min(jobs, len(chosen)), mp_context=get_context("spawn")) as pool,
        click.progressbar(length=len(chosen), label="compiling", file=sys.stderr) as bar,
    ):
        for done in as_completed([pool.submit(run, task) for task in chosen]):
            failure = done.result()
            failures += [failure] if failure else []
            bar.update(1)
    return failures


def arches_here() -> list[str]:
    """Compiler names of the devices of this machine, as the probe finds them."""
    from deepinfer_core.types import HostInfo
    from deepinfer_cuda.arches import COMPILED_AS
    from deepinfer_cuda.probe import probe

    report = probe(HostInfo(sys.platform, platform.machine(), platform.python_version()))
    return [COMPILED_AS[report.arch]] if report.arch in COMPILED_AS else []


@click.command()
@click.option("--area", help="Only the kernels of this area, e.g. attention.")
@click.option("--arch", "arches", multiple=True, help="sm_90a, sm_100a; default: that of the device here.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Processes.")
def main(area: str | None, arches: tuple[str, ...], jobs: int) -> None:
    """Compile all cases of the kernels of deepinfer-cuda into the cache."""
    from deepinfer_cuda.jit.folder import cache_root
    from deepinfer_cuda.jit.registry import areas

    if area is not None and area not in areas():
        raise click.UsageError(f"no area {area!r}; there are {', '.join(areas()) or 'none'}")
    chosen_arches = list(arches) or arches_here()
    if not chosen_arches:
        raise click.UsageError("no supported device here: name architectures with --arch")
    start = time.perf_counter()
    chosen = tasks(area, chosen_arches)
    failures = warm(chosen, jobs)
    took = time.perf_counter() - start
    built = len(chosen) - len(failures)
    click.echo(f"{built} of {len(chosen)} kernels for {', '.join(chosen_arches)} in {cache_root()}, {took:.1f} s")
    for failure in failures:
        click.echo(failure, err=True)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
