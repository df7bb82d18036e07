"""Makes the slow plain versions beside the tests importable, whichever import mode pytest runs in."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread_fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(20261129)


@pytest.fixture(scope="session")
def backend():
    from deepinfer_cpu import backend as cpu

    return cpu.create()
