"""What is checked once at import: contracts and version of the compiled library."""

import subprocess
import sys
from pathlib import Path

import pytest
from attrs import evolve

from deepinfer_contracts import ContractMismatch, verify
from deepinfer_contracts._chains import CONTRACTS
from deepinfer_native.library import VersionMismatch, ffi, lib, verify_library


def test_library_of_these_contracts_is_accepted():
    verify(ffi, lib)


def test_changed_field_is_refused_by_name():
    info = CONTRACTS["SchedulerOutputs"]
    at = next(i for i, (name, _) in enumerate(info.fields) if name == "bt_ids")
    fields = list(info.fields)
    fields[at] = ("bt_ids", "i64[sum]")
    chain = list(info.chain)
    chain[at + 1 :] = [c ^ 1 for c in chain[at + 1 :]]
    changed = evolve(info, fields=tuple(fields), chain=tuple(chain))
    with pytest.raises(ContractMismatch, match=r"SchedulerOutputs differs at field .*bt_ids") as error:
        verify(ffi, lib, ours={**CONTRACTS, "SchedulerOutputs": changed})
    assert (error.value.contract, error.value.field) == ("SchedulerOutputs", "bt_ids")


def test_other_version_is_refused():
    with pytest.raises(VersionMismatch, match=r"is 9\.9, its compiled library is 0\.1\.0; reinstall"):
        verify_library("9.9")


def test_import_of_mismatched_contracts_fails_with_the_field():
    code = (
        "import deepinfer_contracts._chains as c; from attrs import evolve; i = c.CONTRACTS['EventBatch'];"
        "f = list(i.fields); f[4] = ('labels', f[4][1]);"
        "h = tuple(x ^ (n > 4) for n, x in enumerate(i.chain));"
        "c.CONTRACTS['EventBatch'] = evolve(i, fields=tuple(f), chain=h);"
        "import deepinfer_native"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "EventBatch differs at field 4, labels" in done.stderr


def test_import_needs_neither_torch_nor_the_core():
    code = "import sys, deepinfer_native; print(sorted({'torch', 'deepinfer_core'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_files_stay_short():
    root = Path(__file__).parents[1]
    files = [*root.glob("src/di_*.[ch]"), *root.glob("src/deepinfer_native/*.py"), *root.glob("include/di_core*.h")]
    long = {f.name: n for f in files if (n := len(f.read_text().splitlines())) > 400 and f.name != "di_checks.c"}
    assert long == {}
