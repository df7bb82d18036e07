"""Variables that the Ascend runtime and its libraries read, set while a backend of the device lives, and put back then.

They are set when a backend is created and not before: whoever lists plugins keeps their environment.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

SETTINGS = {
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "TASK_QUEUE_ENABLE": "0",
    "HCCL_BUFFSIZE": "16",
    "HCCL_CONNECT_TIMEOUT": "240",
    "HCCL_EXEC_TIMEOUT": "200",
    "HCCL_HOST_SOCKET_PORT_RANGE": "auto",
    "HCCL_NPU_SOCKET_PORT_RANGE": "auto",
    "TILELANG_DEFAULT_TARGET": "ascend",
}
"""What is not set by the user is set to these (``spec/kernels.md`` 7.1)."""


class RuntimeEnvironment:
    """``apply()`` sets what the user left unset; ``restore()`` takes it away again."""

    def __init__(self, environ: MutableMapping[str, str] = os.environ) -> None:
        self._environ = environ
        self._added: dict[str, str] = {}

    def apply(self) -> None:
        for name, value in SETTINGS.items():
            if name not in self._environ:
                self._environ[name] = self._added[name] = value

    def restore(self) -> None:
        """Idempotent. What somebody else changed meanwhile stays."""
        for name, value in self._added.items():
            if self._environ.get(name) == value:
                del self._environ[name]
        self._added.clear()
