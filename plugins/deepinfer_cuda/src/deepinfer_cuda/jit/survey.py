"""``python -m deepinfer_cuda.jit.survey``: lower every case for each architecture, compile the source, and say
what ptxas says of it. Needs no GPU; the cache is neither read nor written, so each line is of the compiler of today.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import click
from attrs import frozen

from deepinfer_cuda.jit.native_output import native_output, races
from deepinfer_cuda.jit.tasks import Task, check_area, run_all, tasks
from deepinfer_cuda.jit.toolkit import host_compiler, nvcc

ARCHES = ("sm_90a", "sm_100a")
LIMIT_S = 600
_RESOURCES = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")


@frozen
class Finding:
    """What became of one case. Of several kernels in one source, the largest figures.

    :ivar failure: empty where it lowers and compiles.
    :ivar registers: of a thread.
    :ivar spill_bytes: stored plus loaded, of a thread.
    :ivar shared_bytes: static, of a block; what a launch asks for beyond is not in the source's report.
    """

    failure: str = ""
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0


def look_at(task: Task) -> Finding:
    """Lower and compile one case."""
    from deepinfer_cuda.jit.registry import find

    factory = find(task.module, task.factory)
    try:
        with native_output() as told:
            source = factory.lower(task.arch, **factory.cases[task.case])
    except Exception as exc:  # whatever TileLang raises, it is the finding
        lines = str(exc).strip().splitlines() or [""]
        return Finding(failure=f"does not lower: {type(exc).__name__}: {lines[-1]}")
    if races(told):
        return Finding(failure=f"has a race: {races(told)[0]}")
    return compile_source(source, task.arch, _flags(factory.pass_configs))


def compile_source(source: str, arch: str, flags: Sequence[str] = ()) -> Finding:
    """Compile CUDA source that TileLang wrote, with the flags that TileLang compiles it with."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        number = arch.removeprefix("sm_")
        command = [nvcc(), "-std=c++20", "-O3", "-cubin", "-Xptxas", "-v", f"-ccbin={host_compiler()}", *flags]
        command += [f"-gencode=arch=compute_{number},code={arch}"]
        command += [
            f"-I{TILELANG_TEMPLATE_PATH}",
            f"-I{CUTLASS_INCLUDE_DIR}",
            "-o",
            f"{folder}/kernel.cubin",
            str(path),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as exc:
            return Finding(failure=f"nvcc: {exc}")
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines() or [""]
        return Finding(failure=f"does not compile: {errors[0]}")
    return Finding(
        registers=max(map(int, _RESOURCES.findall(done.stderr)), default=0),
        spill_bytes=max((int(a) + int(b) for a, b in _SPILLS.findall(done.stderr)), default=0),
        shared_bytes=max(map(int, _SHARED.findall(done.stderr)), default=0),
    )


def _flags(pass_configs: dict[str, object]) -> list[str]:
    from tilelang.transform import PassConfigKey

    return ["--use_fast_math"] if pass_configs.get(PassConfigKey.TL_ENABLE_FAST_MATH) else []


@click.command()
@click.option("--area", help="Only the kernels of this area, e.g. attention.")
@click.option("--arch", "arches", multiple=True, default=ARCHES, show_default=True, help="Architectures.")
@click.option("--jobs", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True, help="Processes.")
@click.option("--json", "file", type=click.Path(dir_okay=False, path_type=Path), help="Write the findings here.")
def main(area: str | None, arches: tuple[str, ...], jobs: int, file: Path | None) -> None:
    """Lower and compile all cases of the kernels of deepinfer-cuda, and count them."""
    check_area(area)
    if not nvcc():
        raise click.UsageError("no nvcc here: install the CUDA toolkit, or set CUDA_HOME")
    found = run_all(tasks(area, arches), look_at, jobs, "lowering")
    for task, finding in found:
        told = finding.failure or f"{finding.registers} registers, {finding.spill_bytes} B spilled"
        click.echo(f"{task.arch:8} {task.label}: {told}")
    if file is not None:
        rows = [{**attrs.asdict(task), **attrs.asdict(finding)} for task, finding in found]
        file.write_text(json.dumps(rows, indent=1) + "\n")
    failed = [finding for _, finding in found if finding.failure]
    for arch in arches:
        of_arch = [finding for task, finding in found if task.arch == arch]
        good = sum(not finding.failure for finding in of_arch)
        spilled = sum(finding.spill_bytes > 0 for finding in of_arch)
        click.echo(f"{arch}: {good} of {len(of_arch)} kernels lower and compile, {spilled} of them spill")
    if failed or not found:
        sys.exit(1)


if __name__ == "__main__":
    main()
