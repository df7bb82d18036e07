"""``import torch`` imports extensions for other devices with itself (entry points ``torch.backends``), and fails where
one of them does: a torch-npu without its CANN would take every backend with it, ``cpu`` too.

So while code of a plugin is imported or called, they are left out, unless the user set the variable. A backend imports
what it needs by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager

VARIABLE = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Environment variable of torch; 1, its default, imports them."""
_held_back = 0


@contextmanager
def left_out(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """An ``import torch`` in here imports torch alone. Nests; does nothing once torch is there."""
    global _held_back
    if "torch" in sys.modules or (not _held_back and VARIABLE in environ):
        yield
        return
    _held_back += 1
    environ[VARIABLE] = "0"
    try:
        yield
    finally:
        _held_back -= 1
        if not _held_back:
            environ.pop(VARIABLE, None)


def users_environment() -> dict[str, str]:
    """A copy of the environment as it is outside of :func:`left_out`: for a child process in a plugin's hook that is to
    do what the user's own would."""
    return {name: value for name, value in os.environ.items() if not (_held_back and name == VARIABLE)}
