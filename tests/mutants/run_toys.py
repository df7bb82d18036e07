"""Run the conformance kit at level full on the toys, one of every kind, in one process. Prints JSON: kind -> outcome.

Beside the first-party plugins, which the nox session ``conformance`` runs: what the kit says must hold for plugins that
have nothing in common with them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import toy_plugins
from run_mutants import run_kit

TOYS = {
    "model": ("toylm", "--on", "toy"),
    "sampler": ("toy_min_p",),
    "logits_filter": ("toy_ban",),
    "grammar": ("toy_regex",),
    "scorer": ("toy_length",),
    "extension": ("toy_extension",),
}


def main() -> int:
    toy_plugins.install()
    answer = {}
    with tempfile.TemporaryDirectory() as folder:
        before = os.getcwd()
        os.chdir(folder)
        try:
            for kind, (name, *options) in TOYS.items():
                outcomes, printed = run_kit(kind, name, [kind, "common"], "--level", "full", *options)
                answer[kind] = {"ran": outcomes.ran, "failures": outcomes.failures, "end": printed[-400:]}
        finally:
            os.chdir(before)
    sys.stdout.write(json.dumps(answer, indent=1) + "\n")
    return int(any(each["failures"] or not each["ran"] for each in answer.values()))


if __name__ == "__main__":
    sys.exit(main())
