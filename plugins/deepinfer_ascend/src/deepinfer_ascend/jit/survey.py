"""``python -m deepinfer_ascend.jit.survey``: every kernel lowered, without a device; how many, how long, which calls.
With ``--compile`` each is compiled for the chip as well, which needs ``bisheng`` of CANN.

Exit status 1 where one does not lower that is not in ``registry.DOES_NOT_LOWER``, where one of that list lowers, where
one calls what the shim does not know, or where one does not compile; 3 where there is nothing to compile it with.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from deepinfer_ascend.jit.compiling import compiled
from deepinfer_ascend.jit.lowering import lowered
from deepinfer_ascend.jit.registry import DOES_NOT_LOWER, tasks
from deepinfer_ascend.jit.structure import structure, too_large, unknown
from deepinfer_core.errors import EngineError, VendorImportError


def label(name: str, sizes: Any) -> str:
    """``rms_rows(width=512)``."""
    return f"{name}({', '.join(f'{key}={value}' for key, value in sizes.items())})"


def survey(*, compile_too: bool = False) -> tuple[dict[str, Any], list[str], float]:
    """Structure of each kernel by its label, what is wrong, and the seconds that lowering took.

    :raises VendorImportError: with ``compile_too``: TileLang or ``bisheng`` is not here.
    """
    found: dict[str, Any] = {}
    problems: list[str] = []
    seconds = 0.0
    for name, sizes in tasks():
        text = label(name, sizes)
        try:
            kernel = lowered(name, **sizes)
        except Exception as exc:  # TileLang's passes raise what they like
            if name not in DOES_NOT_LOWER:
                problems.append(f"{text} does not lower: {str(exc).strip().splitlines()[-1] if str(exc) else exc!r}")
            continue
        if name in DOES_NOT_LOWER:
            problems.append(f"{text} lowers, and is listed as one that does not")
        if unknown(kernel):
            problems.append(f"{text} calls {', '.join(unknown(kernel))}")
        problems += [f"{text} takes {what}" for what in too_large(kernel)]
        seconds += kernel.seconds
        found[text] = structure(kernel)
        if compile_too:
            try:
                compiled(name, sizes)
            except EngineError as exc:
                problems.append(f"{text} does not compile: {exc.reason}")
    return found, problems, seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the structure of each kernel")
    parser.add_argument("--compile", action="store_true", help="compile each for the chip, too")
    options = parser.parse_args()
    try:
        found, problems, seconds = survey(compile_too=options.compile)
    except VendorImportError as exc:
        sys.stderr.write(f"{exc}\n")
        return exc.exit_status
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    lines = [f"{len(found)} of {len(tasks())} kernels lowered for Ascend 950 in {seconds:.1f} s"]
    lines += [f"does not lower: {name}: {why}" for name, why in DOES_NOT_LOWER.items()]
    sys.stdout.write("\n".join([*lines, *problems]) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
