"""Fixtures of the tests of backend ascend."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def one_thread_fixed_seed():
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(20261130)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """``machine(...)``: a machine with an Ascend 950 and all that belongs to it, with some of it broken."""
    from fake_machine import FakeMachine

    return lambda **broken: FakeMachine(tmp_path, monkeypatch, **broken)
