"""Modules beside the tests (`native_driver`) are imported by name; the core's objects are compiled once."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def core_objects(tmp_path_factory):
    """(compiler command, object files of the core) for programs of the tests."""
    from c_build import compile_core, compiler  # found through the path above

    cc = compiler()
    if cc is None:
        pytest.skip("no C compiler is installed: apt install gcc")
    return cc, compile_core(tmp_path_factory.mktemp("core") / "objects", cc, [])
