"""A library whose record was changed by one side only is refused when it is loaded, with the name of the field.

The whole core is built from schemas that differ in one field, without optimisation, in a copy. The Python side stays.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import frozen

pytestmark = pytest.mark.compiled
NATIVE = Path(__file__).resolve().parents[1]
CONTRACTS = NATIVE.parent / "contracts"
LOAD = """
from deepinfer_contracts import ContractMismatch
try:
    import deepinfer_native
except ContractMismatch as error:
    print(error)
"""
BUILD = """
import sys
sys.path.insert(0, ".")
import build_ffi
build_ffi.ffi.emit_c_code("_native.c")
"""


def renamed(text: str) -> str:
    """Of a schema, or of a source, which speaks of the field and of the constants that are named for it."""
    text = re.sub(r"\bverified_ids\b", "checked_ids", text)
    return re.sub(r"(\w+_OUTPUT)_VERIFIED_IDS\b", r"\1_CHECKED_IDS", text)


def reordered(schema: str) -> str:
    head, *fields = schema.split("[[field]]\n")
    places = {re.match(r'name = "(\w+)"', field)[1]: at for at, field in enumerate(fields)}  # type: ignore[index]
    a, b = places["sampled_logprob"], places["verified_ids"]
    fields[a], fields[b] = fields[b], fields[a]
    return "[[field]]\n".join([head, *fields])


def retyped(field: str, before: str, after: str) -> Callable[[str], str]:
    def change(schema: str) -> str:
        return schema.replace(f'name = "{field}"\ndtype = "{before}"', f'name = "{field}"\ndtype = "{after}"')

    return change


@frozen
class Mutation:
    """``change`` of sampler_output.toml, and what is said of it."""

    change: Callable[[str], str]
    message: str


MUTATIONS = {
    "rename": Mutation(
        renamed, "field 5, verified_ids: deepinfer-contracts i32[T], deepinfer-native checked_ids i32[T]"
    ),
    "reorder": Mutation(
        reordered, "field 4, sampled_logprob: deepinfer-contracts f32[N], deepinfer-native verified_ids i32[T]"
    ),
    "sign": Mutation(
        retyped("verified_ids", "i32", "u32"),
        "field 5, verified_ids: deepinfer-contracts i32[T], deepinfer-native u32[T]",
    ),
    "type": Mutation(
        retyped("sampled_logprob", "f32", "f64"),
        "field 4, sampled_logprob: deepinfer-contracts f32[N], deepinfer-native f64[N]",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_library_of_a_record_changed_on_its_side_only_is_refused_with_the_field(tmp_path: Path, name: str) -> None:
    package = build(tmp_path, MUTATIONS[name].change)
    path = os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-c", LOAD]
    done = subprocess.run(
        run, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=60, check=True
    )
    first, *others = done.stdout.splitlines()
    assert first == f"E_CONTRACT: SamplerOutput differs at {MUTATIONS[name].message}"
    assert others[1] == "  remedy: rebuild deepinfer-native against contract 1.0"


def build(folder: Path, change: Callable[[str], str]) -> Path:
    """A folder with the package ``deepinfer_native``, its library built from the changed schema."""
    schema, native = folder / "schema", folder / "native"
    shutil.copytree(CONTRACTS / "schema", schema)
    record = schema / "sampler_output.toml"
    before = record.read_text(encoding="utf-8")
    record.write_text(change(before), encoding="utf-8")
    if record.read_text(encoding="utf-8") == before:
        raise AssertionError("the schema is as before")
    ignored = shutil.ignore_patterns("build", "tests", "fuzz", "*.so", "__pycache__", "*.egg-info")
    shutil.copytree(NATIVE, native, ignore=ignored)
    (folder / "history").mkdir()  # nothing was released in this world
    (folder / "contracts").mkdir()
    generate = [sys.executable, str(CONTRACTS / "generate.py"), "--schema", str(schema), "--root", str(folder)]
    run([*generate, "--history", str(folder / "history")], folder)
    if "checked_ids" in record.read_text(encoding="utf-8"):  # the core speaks of the field by its name
        for source in (native / "src").glob("di_*.[ch]"):
            source.write_text(renamed(source.read_text(encoding="utf-8")), encoding="utf-8")
    compile_library(native)
    return native / "src"


def compile_library(native: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler on PATH")
    run([sys.executable, "-c", BUILD], native)
    from importlib.metadata import version

    options = ["-std=c11", "-O0", "-w", "-fPIC", "-shared", "-pthread", "-DPy_LIMITED_API=0x030b0000"]
    includes = [f"-I{path}" for path in ("include", "src", sysconfig.get_paths()["include"])]
    sources = ["_native.c", *sorted(str(path) for path in (native / "src").glob("di_*.c"))]
    target = native / "src" / "deepinfer_native" / "_native.abi3.so"
    define = f'-DDI_VERSION="{version("deepinfer-native")}"'
    run([compiler, *options, define, *includes, *sources, "-o", str(target), "-lm"], native)


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=110, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
