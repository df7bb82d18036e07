"""The stages, in the order in which each rests on those before it (``docs/how-to/ascend-first-day.md``)."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from attrs import Factory, evolve, frozen

MINUTE = 60.0
_OWN = "deepinfer_ascend.first_day"
REHEARSED = {
    "doctor": "it says what is lacking here, and that there is no device does not count as a failure",
    "device": "tensors of the host: there is no event, and any call can be captured",
    "vendors": "the equivalents alone are listed, and no library is looked for",
    "kernels": "each is lowered, and bisheng compiles none",
    "plain": "by the processor",
    "conformance": "vendor calls go to equivalents; plain ops serve the rest, as the capabilities say",
    "golden": "by the processor",
    "bench-prefill": "the figures are those of the processor",
    "bench-decode": "the figures are those of the processor",
}
"""Stage -> what is different in a rehearsal, whether it passes or not."""


@frozen
class Stage:
    """One process.

    :ivar what: it finds out. :ivar command: to run. :ivar limit_s: after which it is killed.
    :ivar attached: JSON files that it writes, by the name that the report gives them.
    :ivar environ: variables that it gets besides. :ivar passing: exit statuses of a stage that passed.
    :ivar rehearsed: what an emulated stage does instead; empty on a device.
    """

    name: str
    what: str
    command: tuple[str, ...]
    limit_s: float
    attached: Mapping[str, Path] = Factory(dict)
    environ: Mapping[str, str] = Factory(dict)
    passing: tuple[int, ...] = (0,)
    rehearsed: str = ""


@frozen
class Options:
    """:ivar emulate: rehearse on the processor. :ivar level: of the conformance kit."""

    emulate: bool = False
    device: str | None = None
    level: str = "core"


def stages(options: Options, folder: Path) -> tuple[Stage, ...]:
    """All of them; files that they attach go to ``folder``."""
    emulate = ("--emulate",) if options.emulate else ()
    device = ("--device", options.device) if options.device else ()
    own = (*emulate, *device)
    # Every command takes settings from the environment, and not every one has each as an option.
    settings = {"DEEPINFER_BACKEND": "ascend", "DEEPINFER_EMULATE": "1" if options.emulate else "0"}
    if options.device:
        settings["DEEPINFER_DEVICE"] = options.device

    def python(*arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-m", *arguments)

    def deepinfer(*arguments: str) -> tuple[str, ...]:
        return python("deepinfer_core.cli", *arguments)

    def bench(kind: str, *arguments: str) -> Stage:
        out = folder / f"{kind}.json"
        command = deepinfer("bench", kind, "--out", str(out), *arguments)
        return Stage(f"bench-{kind}", f"the speed of {kind} steps", command, 20 * MINUTE, {kind: out}, settings)

    compiled = () if options.emulate else ("--compile",)
    kit, kernels = folder / "conformance.json", folder / "kernels.json"
    conformance = python(
        "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "deepinfer_core.conformance", "--backend", "ascend",
        *emulate, "--level", options.level, f"--report={kit}",
    )  # fmt: skip
    without_ours = {"DEEPINFER_ASCEND_LOWERED": "0"}
    exact = ("--numeric-mode", "exact", "--no-graphs", "--temperature", "0", "--max-tokens", "8", "import os")
    made = (
        Stage("doctor", "what the set-up lacks", deepinfer("doctor", "ascend", "--json"), 5 * MINUTE,
              passing=(0, 1) if options.emulate else (0,)),
        Stage("device", "tensors, copies, events, graphs, memory", python(f"{_OWN}.on_device", *own), 10 * MINUTE),
        Stage("vendors", "each symbol that an op calls", python(f"{_OWN}.vendors", *emulate), 10 * MINUTE),
        Stage("kernels", "our own, lowered and compiled",
              python("deepinfer_ascend.jit.survey", "--json", str(kernels), *compiled), 60 * MINUTE,
              {"kernels": kernels}),
        Stage("plain", "one text by plain ops alone", deepinfer("generate", "--json", *exact), 10 * MINUTE,
              environ=settings | without_ours),
        Stage("conformance", "every op beside its meaning", conformance, 120 * MINUTE, {"conformance": kit},
              environ=without_ours if options.emulate else {}),
        Stage("golden", "texts beside recorded ones, or those of cpu", python(f"{_OWN}.golden", *own), 20 * MINUTE),
        bench("prefill", "--prompt", "256", "--rounds", "3"),
        bench("decode", "--batch", "4", "--prompt", "128", "--steps", "32"),
    )  # fmt: skip
    return tuple(evolve(stage, rehearsed=REHEARSED[stage.name]) for stage in made) if options.emulate else made


NAMES = tuple(stage.name for stage in stages(Options(), Path()))
"""In order."""
