"""The shipped model on backend cpu with graphs: closures that run again.

What they read and write are the fixed inputs and results, as on a device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from deepinfer_core.assembly.assemble import assemble
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import GraphCaptureError
from deepinfer_core.llm import LLM

PROMPTS = ["import os\n" * 4, "def f(x):\n    return x\n" * 2, "class A:\n" * 6, "x = 1\n", "for i in range(3):\n"]


class Tape:
    """``Backend.capture`` on the host. ``runs`` has the size of each step: recorded, or launched again."""

    def __init__(self) -> None:
        self.recorded = 0
        self.launched = 0

    def capture(self, call: Callable[[], object]) -> Callable[[], None]:
        call()
        self.recorded += 1

        def launch() -> None:
            self.launched += 1
            call()

        return launch


class HostCopy:
    """``Backend.host_like`` of an array of the host."""

    def __init__(self, like: Any) -> None:
        self._memory = np.zeros_like(like)

    def copy_(self, source: Any, non_blocking: bool) -> None:
        assert non_blocking
        self._memory[...] = source

    def numpy(self) -> Any:
        return self._memory


def refuse(call: Callable[[], object]) -> Callable[[], None]:
    raise GraphCaptureError("a step cannot be captured", reason="aten::item", remedy="run with --no-graphs")


def shipped(capture: Any, static: bool = True, host_like: Any = None, **settings: Any) -> LLM:
    """The shipped model on backend cpu with ``capture`` added."""
    settings = {"backend": "cpu", "max_num_seqs": 5, "block_size": 16, "max_model_len": 128, **settings}
    assembly = assemble(EngineConfig.resolve(settings, environ={}, flag_origin="argument"), announce=None)
    if capture is not None:
        assembly.backend.capture = capture  # type: ignore[attr-defined]
    if host_like is not None:
        assembly.backend.host_like = host_like  # type: ignore[attr-defined]
    assembly.model.static_decode = static  # type: ignore[attr-defined]
    return LLM.from_assembly(assembly)
