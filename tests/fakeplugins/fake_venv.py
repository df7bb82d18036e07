"""A throw-away venv that sees the packages of the environment of the tests, with whatever is installed into it besides.

The packages of the outer environment (ours and torch among them) come by a ``.pth`` file, which costs nothing; what a
test installs lies before them on the import path. Wheels are built by hatchling and installed, upgraded and removed by
uv, as a user would have it.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Sequence
from pathlib import Path

from attrs import define, field

CONSOLE_SCRIPT = """#!{python}
import sys
from deepinfer_core.cli import main

sys.exit(main())
"""
LEFT_OUT = ("deepinfer_cuda", "deepinfer_ascend")
"""In the names of what is kept from the venvs: what commands print must not depend on whether it is installed."""
# Tells, in the file that FAKEPLUGINS_IMPORTS names, which packages of interest a process ran code of: torch and fakes.
IMPORT_AUDIT = """
import os
import sys


def _note(event, arguments):
    file = os.environ.get("FAKEPLUGINS_IMPORTS") if event == "exec" else None
    if not file:
        return
    package, module = ["", *getattr(arguments[0], "co_filename", "").split("/")][-2:]
    if package.startswith("fake_") or (package, module) == ("torch", "__init__.py"):
        with open(file, "a") as stream:
            stream.write(package + "\\n")


sys.addaudithook(_note)
"""


@define
class FakeVenv:
    """One venv. ``site`` is its site-packages folder."""

    folder: Path
    site: Path = field(init=False)

    def __attrs_post_init__(self) -> None:
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        self.site = self.folder / "lib" / version / "site-packages"

    @classmethod
    def create(cls, folder: Path) -> FakeVenv:
        made = cls(folder)
        venv.EnvBuilder(with_pip=False, symlinks=True).create(folder)
        outer = [made.outer(Path(path), i) for i, path in enumerate(site.getsitepackages()) if Path(path).is_dir()]
        lines = [f"import site; site.addsitedir({path!r})" for path in outer]
        (made.site / "zz_outer.pth").write_text("\n".join(["import _fake_import_audit", *lines]) + "\n")
        (made.site / "_fake_import_audit.py").write_text(IMPORT_AUDIT)
        script = folder / "bin" / "deepinfer"
        script.write_text(CONSOLE_SCRIPT.format(python=made.python))
        script.chmod(0o755)
        return made

    def outer(self, packages: Path, number: int) -> str:
        """A folder of links to what is in ``packages``, without distributions that not every environment has."""
        folder = self.folder / "outer" / str(number)
        folder.mkdir(parents=True)
        for entry in packages.iterdir():
            if not any(name in entry.name for name in LEFT_OUT):
                (folder / entry.name).symlink_to(entry)
        return str(folder)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def environment(self, **more: str) -> dict[str, str]:
        """The variables of a command in this venv, without settings of ours."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("DEEPINFER_", "UV_"))}
        path = os.pathsep.join([str(self.folder / "bin"), inherited.get("PATH", "")])
        return inherited | {"PATH": path, "VIRTUAL_ENV": str(self.folder), "OMP_NUM_THREADS": "1"} | more

    def shell(
        self, command: str, cwd: Path, *, timeout_s: float = 90, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """What ``command`` does, typed with this venv activated."""
        options = ["bash", "--norc", "-c", command]
        environment = self.environment(**environ)
        return subprocess.run(
            options, cwd=cwd, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def run(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """``deepinfer ARGUMENTS`` in an empty folder."""
        empty = self.folder / "empty"
        empty.mkdir(exist_ok=True)
        options = ["-O"] * sys.flags.optimize
        command = [str(self.python), *options, str(self.folder / "bin" / "deepinfer"), *arguments]
        environment = self.environment(**environ)
        return subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, timeout=90, check=False
        )

    def install(self, *wheels: Path | str) -> None:
        """Install or upgrade; an editable installation is given as ``-e FOLDER``."""
        uv("pip", "install", "--python", str(self.python), "--no-deps", "--no-build-isolation", *map(str, wheels))

    def uninstall(self, *distributions: str) -> None:
        uv("pip", "uninstall", "--python", str(self.python), *distributions)


def uv_command() -> list[str] | None:
    """uv from PATH or as a module; None where there is none."""
    found = shutil.which("uv")
    if found:
        return [found]
    module = Path(sysconfig.get_paths()["scripts"]) / "uv"
    return [str(module)] if module.exists() else None


def uv(*arguments: str) -> None:
    command = uv_command()
    if command is None:
        raise FileNotFoundError("uv is not installed")
    # Without its cache: a wheel built anew under the same name and version must not be an old one.
    options = [*command, "--quiet", "--no-cache", "--offline", "--no-config", *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(options, capture_output=True, text=True, env=environment, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"uv {' '.join(arguments)}: {done.stderr}")


_BUILD = """
import os, sys
from hatchling import build

out, *folders = sys.argv[1:]
for folder in folders:
    os.chdir(folder)
    print(os.path.join(out, build.build_wheel(out)))
"""


def build_wheels(folders: Sequence[Path], out: Path) -> list[Path]:
    """A wheel of each folder, by its build backend (hatchling), all in one process."""
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-c", _BUILD, str(out), *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the wheels of {', '.join(f.name for f in folders)}: {done.stderr}")
    return [Path(line) for line in done.stdout.splitlines() if line.endswith(".whl")]


def missing_tools() -> str:
    """What an installation needs and is not here; empty when all is."""
    import importlib.util

    missing = [name for name in ("hatchling", "editables") if importlib.util.find_spec(name) is None]
    missing += [] if uv_command() else ["uv"]
    return ", ".join(missing)


def cases(folder: Path) -> Iterable[Path]:
    """The folders of the fake distributions."""
    return sorted(path.parent for path in folder.glob("*/pyproject.toml"))
