"""Fixtures of the tests without a device, and of those in ``device``."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread_fixed_seed():
    torch.set_num_threads(1)
    torch.manual_seed(20261130)


@pytest.fixture(scope="session")
def cuda():
    """The device of the tests marked ``cuda``."""
    return torch.device("cuda", torch.cuda.current_device())
