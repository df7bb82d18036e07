"""Greedy texts of the shipped checkpoint in exact arithmetic, beside recorded ones, or beside those of ``cpu`` here.

The recorded ones are in a clone of the repository, with the gap between the two best tokens at each step: behind a gap
below 1e-3 either may follow.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import asdict, frozen

from deepinfer_core import LLM, SamplingParams

PLACE = Path("plugins/deepinfer_v41/tests/golden/golden-v41-tiny.json")
CLOSE = 1e-3
TEXTS = ("import os\n", "def f(x):\n    return", "class A:\n", "for i in range(3):\n")
VARIANTS = {"kvq": True, "plain": False}
"""Name in the file -> whether caches have the model's formats."""
TOKENS = 32


@frozen
class Case:
    """:ivar prompt: token ids or text. :ivar wanted: tokens that must come, as far as they are sure."""

    name: str
    variant: str
    prompt: Any
    wanted: tuple[int, ...]


@frozen
class Outcome:
    """:ivar equal: how many of the ``sure`` tokens came, from the first."""

    name: str
    sure: int
    equal: int

    @property
    def is_right(self) -> bool:
        return self.equal == self.sure


def recorded() -> Path | None:
    """The file, where this is a clone of the repository."""
    found = importlib.util.find_spec("deepinfer_v41")
    folders = Path(found.origin).parents if found is not None and found.origin else ()
    return next((folder / PLACE for folder in folders if (folder / PLACE).is_file()), None)


def recorded_cases(manifest: Mapping[str, Any]) -> list[Case]:
    cases = []
    for text in manifest["texts"]:
        for variant in VARIANTS:
            greedy, gaps = text[variant]["greedy"][:TOKENS], text[variant]["gaps"][:TOKENS]
            sure = next((i for i, gap in enumerate(gaps) if gap < CLOSE), len(gaps))
            cases.append(Case(f"{text['id']}, {variant}", variant, text["ids"], tuple(greedy[:sure])))
    return cases


def cases_of_cpu() -> list[Case]:
    """What ``cpu`` makes of ``TEXTS`` on this machine."""
    cases = []
    for variant in VARIANTS:
        found = tokens("cpu", variant, TEXTS, {})
        cases += [Case(f"{text!r}, {variant}", variant, text, out) for text, out in zip(TEXTS, found, strict=True)]
    return cases


def tokens(backend: str, variant: str, prompts: Sequence[Any], more: Mapping[str, Any]) -> list[tuple[int, ...]]:
    settings = {"numeric_mode": "exact", "kv_memory": "64MiB", "cache_formats": VARIANTS[variant], **more}
    with LLM(backend=backend, **settings) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        return [tuple(o.outputs[0].token_ids) for o in llm.generate(list(prompts), greedy)]


def compare(cases: Sequence[Case], more: Mapping[str, Any]) -> list[Outcome]:
    outcomes = []
    for variant in VARIANTS:
        chosen = [case for case in cases if case.variant == variant]
        for case, mine in zip(chosen, tokens("ascend", variant, [c.prompt for c in chosen], more), strict=True):
            pairs = enumerate(zip(mine, case.wanted, strict=False))
            equal = next((i for i, (a, b) in pairs if a != b), min(len(mine), len(case.wanted)))
            outcomes.append(Outcome(case.name, len(case.wanted), equal))
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--emulate", action="store_true")
    parser.add_argument("--device")
    options = parser.parse_args()
    path = recorded()
    cases = recorded_cases(json.loads(path.read_text("utf-8"))) if path is not None else cases_of_cpu()
    more = {"emulate": True} if options.emulate else {"device": options.device} if options.device else {}
    outcomes = compare(cases, more)
    told = {"beside": str(path or "backend cpu here"), "texts": [asdict(outcome) for outcome in outcomes]}
    sys.stdout.write(json.dumps(told, indent=1) + "\n")
    return int(not all(outcome.is_right for outcome in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
