"""The child's side of :mod:`deepinfer_core.plugins.child`: call one function, and write its answer to the pipe.

Standard output and error belong to the plugin and its driver libraries; the answer has a pipe of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from importlib import import_module
from typing import Any

from deepinfer_core.plugins.tracing import in_child


def main(fd: int, target: str, arguments: list[Any]) -> None:
    """Call ``target`` (``module:function``) and report to file descriptor ``fd``, as one line of JSON."""
    in_child()
    module, _, name = target.partition(":")
    answer = getattr(import_module(module), name)(*arguments)
    for stream in (sys.stdout, sys.stderr):  # who has answered may be killed before it ends
        with contextlib.suppress(OSError, ValueError, AttributeError):  # full, closed, or replaced by a plugin
            stream.flush()
    with os.fdopen(fd, "w", encoding="utf-8") as pipe:
        pipe.write(json.dumps(answer) + "\n")
