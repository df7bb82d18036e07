"""``python toy_command.py generate ...``: the real command line over the toy parts, for tests that need a process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from engine_toys import ToyParts

from deepinfer_core.assembly import assemble as assembly
from deepinfer_core.cli import main
from deepinfer_core.types import ModelCard


class HangingEngine:
    """A grammar engine whose compiler never comes back; it says so once it is in there."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        pass

    def compile(self, so_args: Any) -> Any:
        sys.stderr.write("compiling\n")
        sys.stderr.flush()
        threading.Event().wait()


def assemble(config: Any, **_: Any) -> ToyParts:
    if "TOY_SWALLOWS_INTERRUPT" in os.environ:  # as compiled code does that finds a Python error set
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        if os.environ["TOY_SWALLOWS_INTERRUPT"] == "for another":
            raise ValueError("could not determine the shape")
    sys.stderr.write("backend: toy (test)\n")
    path = Path(os.environ["TOY_MODEL"])
    grammar = HangingEngine if "TOY_GRAMMAR_HANGS" in os.environ else None
    return ToyParts(config, card=ModelCard(path=path, architecture="Toy", model_type="toy", config={}), grammar=grammar)


if __name__ == "__main__":
    assembly.assemble = assemble  # type: ignore[assignment]
    sys.exit(main())
