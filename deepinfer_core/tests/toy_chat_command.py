"""``python toy_chat_command.py chat ...``: the real command line over a toy that says TOY_ANSWER to everything."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from chat_toys import chat_parts, chat_tokenizer
from engine_toys import ToyParts

from deepinfer_core.assembly import assemble as assembly
from deepinfer_core.cli import main
from deepinfer_core.types import ModelCard


def assemble(config: Any, **_: Any) -> ToyParts:
    sys.stderr.write("backend: toy (test)\n")
    path = Path(os.environ["TOY_MODEL"])
    card = ModelCard(path=path, architecture="Toy", model_type="toy", config={})
    return ToyParts(config, card=card, **chat_parts([os.environ["TOY_ANSWER"]], chat_tokenizer()))


if __name__ == "__main__":
    assembly.assemble = assemble  # type: ignore[assignment]
    sys.exit(main())
