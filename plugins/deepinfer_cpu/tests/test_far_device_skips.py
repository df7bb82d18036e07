"""``far_device`` on a machine with a real accelerator: it leaves that one in its place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ON_A_GPU = """
import torch
torch.accelerator.current_accelerator = lambda check_available=False: torch.device("cuda") if check_available else None
import pytest
try:
    import far_device
except pytest.skip.Exception as exc:
    print(exc.allow_module_level, hasattr(torch, "far"), exc)
"""


def test_modules_of_the_device_that_is_none_are_skipped_beside_a_real_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ON_A_GPU],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert done.stdout.startswith("True False the accelerator of this process is cuda: hide it (CUDA_VISIBLE_DEVICES=)")
