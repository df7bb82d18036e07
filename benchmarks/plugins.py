"""How long finding many installed plugins takes, and that none of them is imported.

    python benchmarks/plugins.py [--plugins N] [--repeat N] [--json FILE]

Builds N distributions as wheels, installs them with uv into a throw-away venv that sees the packages of this one, and
times whole processes there. The plugins have manifests with claims, as real ones do, and write a file when they are
imported. The cases take turns; medians. Processor time hardly moves when the machine is busy with other work.
"""  # fmt: skip

from __future__ import annotations

import argparse
import json
import os
import site
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
import venv
from pathlib import Path

from startup import child_seconds, machine

GROUPS = ("backend", "model", "sampler", "grammar", "logits_filter", "scorer")
PYPROJECT = """
[build-system]
requires = ["hatchling>=1.24"]
build-backend = "hatchling.build"
[project]
name = "bench-{n}"
version = "1.0"
[project.entry-points."deepinfer.manifest"]
bench-{n} = "bench_{n}:deepinfer.toml"
[project.entry-points."deepinfer.{kind}s"]
bench_{n} = "bench_{n}.plugin"
"""
MANIFEST = """
schema = 1
api = ">=1.0,<2"
[[{kind}]]
name = "bench_{n}"
summary = "one of many"
{more}
"""
MORE = {
    "backend": 'arch = ["toy"]\nclaims = ["feature:batch_invariant", "kv:v41", "kv:bf16"]',
    "model": 'architectures = ["Bench{n}ForCausalLM"]',
}
TRAP = "import os\nopen(os.environ['BENCH_IMPORTED'], 'a').write(__name__ + '\\n')\n"
# Runs a command, and says on its last line how often the metadata of the environment was scanned.
COUNTED = """
import sys
from importlib import metadata
scans = 0
whole = metadata.entry_points
def entry_points(**given):
    global scans
    scans += 1
    return whole(**given)
metadata.entry_points = entry_points
from deepinfer_core.cli import main
status = main(["plugins"])
print(f"scans {scans}")
sys.exit(status)
"""
# Name -> arguments after `python`, limit in ms (None: for comparison only).
CASES: dict[str, tuple[list[str], float | None]] = {
    "python": (["-c", "pass"], None),
    "entry_points()": (["-c", "import importlib.metadata; importlib.metadata.entry_points()"], None),
    "deepinfer --help": (["-m", "deepinfer_core.cli", "--help"], 150.0),
    "deepinfer plugins": (["-m", "deepinfer_core.cli", "plugins"], 300.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", type=int, default=50)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        python = install(Path(scratch), options.plugins)
        imported = Path(scratch) / "imported"
        environment = {key: value for key, value in os.environ.items() if not key.startswith("DEEPINFER_")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment |= {"PYTHONPYCACHEPREFIX": str(Path(scratch) / "compiled"), "BENCH_IMPORTED": str(imported)}
        proof = prove(python, environment, options.plugins, imported)
        times = measure(python, environment, options.repeat)
        if imported.exists():
            sys.exit(f"plugins were imported: {imported.read_text().split()}")
    report = {"machine": machine(), "repeat": options.repeat, "unit": "ms", **proof, "cases": times}
    print(f"{report['machine']['processor']}, {report['machine']['cores']} cores, load {os.getloadavg()[0]:.1f}")
    print(f"{proof['plugins']} plugins listed, {proof['imported']} imported, {proof['scans']} scan of the metadata")
    for name, row in times.items():
        limit = f"limit {row['limit']:.0f}" if row["limit"] else ""
        ratios = f"{row['to_python']:5.1f} x python {row['to_entry_points']:5.1f} x entry_points()"
        figures = f"wall {row['wall']:5.0f} ms (least {row['least']:4.0f}) cpu {row['cpu']:5.0f} ms"
        print(f"{name:18} {figures} {ratios} {limit}")
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")
    return 0


def install(folder: Path, count: int) -> Path:
    """Real distributions in a venv of their own. Returns its Python."""
    wheels = folder / "wheels"
    for n in range(count):
        kind = GROUPS[n % len(GROUPS)]
        package = folder / "sources" / f"bench-{n}" / f"bench_{n}"
        package.mkdir(parents=True)
        (package.parent / "pyproject.toml").write_text(PYPROJECT.format(n=n, kind=kind))
        more = MORE.get(kind, "").format(n=n)
        (package / "deepinfer.toml").write_text(MANIFEST.format(n=n, kind=kind, more=more).lstrip())
        for module in ("__init__", "plugin"):
            (package / f"{module}.py").write_text(TRAP)
    build = """
        import os, sys
        from hatchling.build import build_wheel
        for folder in sys.argv[2:]:
            os.chdir(folder)
            build_wheel(sys.argv[1])
    """
    sources = [str(path) for path in sorted((folder / "sources").iterdir())]
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", textwrap.dedent(build), str(wheels), *sources], check=True)
    venv.EnvBuilder(with_pip=False, symlinks=True).create(folder / "venv")
    python = folder / "venv" / "bin" / "python"
    [packages] = (folder / "venv" / "lib").glob("python*/site-packages")
    outer = [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages() if Path(path).is_dir()]
    (packages / "zz_outer.pth").write_text("\n".join(outer) + "\n")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-cache", "--offline", "--no-deps"]
    subprocess.run([*uv, "--python", str(python), *map(str, sorted(wheels.glob("*.whl")))], check=True)
    return python


def prove(python: Path, environment: dict[str, str], count: int, imported: Path) -> dict[str, int]:
    """All are listed, none is imported, and the environment is read once."""
    done = subprocess.run([str(python), "-c", COUNTED], env=environment, capture_output=True, text=True, check=True)
    *lines, last = done.stdout.splitlines()
    listed = sum(" bench-" in line and " found " in line for line in lines)
    if listed != count:
        sys.exit(f"{listed} of {count} plugins are listed as found:\n{done.stdout}{done.stderr}")
    scans = int(last.removeprefix("scans "))
    return {"plugins": listed, "imported": int(imported.exists()), "scans": scans}


def measure(python: Path, environment: dict[str, str], repeat: int) -> dict[str, dict[str, float | None]]:
    """Times of whole processes; medians, and ratios of the processor times."""
    wall: dict[str, list[float]] = {name: [] for name in CASES}
    cpu: dict[str, list[float]] = {name: [] for name in CASES}
    for turn in range(repeat + 1):
        for name, (arguments, _) in CASES.items():
            began, used = time.perf_counter(), child_seconds()
            subprocess.run([str(python), *arguments], env=environment, stdout=subprocess.DEVNULL, check=True)
            if turn:  # the first turn compiles
                wall[name].append((time.perf_counter() - began) * 1e3)
                cpu[name].append((child_seconds() - used) * 1e3)
    medians = {name: statistics.median(values) for name, values in cpu.items()}
    return {
        name: {
            "wall": statistics.median(wall[name]),
            "least": min(wall[name]),
            "cpu": medians[name],
            "to_python": medians[name] / medians["python"],
            "to_entry_points": medians[name] / medians["entry_points()"],
            "limit": limit,
        }
        for name, (_, limit) in CASES.items()
    }


if __name__ == "__main__":
    sys.exit(main())
