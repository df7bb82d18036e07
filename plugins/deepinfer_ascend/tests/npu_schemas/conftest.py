"""torch-npu as it is, without its runtime: imported where it is installed. No test here computes on it."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def torch_npu():
    if importlib.util.find_spec("torch_npu") is None:
        pytest.skip("torch-npu is not installed: nox -s npu_schemas has it, with libraries in place of CANN's")
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD") != "0":
        pytest.skip("TORCH_DEVICE_BACKEND_AUTOLOAD=0 is not set: nox -s npu_schemas sets it")
    return importlib.import_module("torch_npu")
