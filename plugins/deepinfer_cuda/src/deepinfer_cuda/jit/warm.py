"""``python -m deepinfer_cuda.jit.warm``: compile every case of every kernel into the cache, in several processes.

Needs no GPU where ``--arch`` is given: the cache can be made on one machine and carried to another.
"""

from __future__ import annotations

import os
import platform
import sys
import time

import click

from deepinfer_core.errors import DeepInferError
from deepinfer_cuda.jit.tasks import Task, check_area, run_all, tasks


def compile_one(task: Task) -> str:
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

    check_area(area)
    chosen_arches = list(arches) or arches_here()
    if not chosen_arches:
        raise click.UsageError("no supported device here: name architectures with --arch")
    start = time.perf_counter()
    done = run_all(tasks(area, chosen_arches), compile_one, jobs, "compiling")
    took = time.perf_counter() - start
    failures = [failure for _, failure in done if failure]
    count = f"{len(done) - len(failures)} of {len(done)}"
    click.echo(f"{count} kernels for {', '.join(chosen_arches)} in {cache_root()}, {took:.1f} s")
    for failure in failures:
        click.echo(failure, err=True)
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
