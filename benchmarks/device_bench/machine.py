"""What the figures of a device depend on."""

from __future__ import annotations

import datetime
import os
import platform
from typing import Any

import torch


def machine() -> dict[str, Any]:
    where: dict[str, Any] = {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cores": os.cpu_count(),
    }
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(torch.cuda.current_device())
        where |= {
            "device": found.name,
            "memory_bytes": found.total_memory,
            "multiprocessors": found.multi_processor_count,
            "cuda": torch.version.cuda,
        }
    return where
