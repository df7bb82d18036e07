"""From the options of a command to its report."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

from deepinfer_bench.ceilings import Ceilings, measure_ceilings
from deepinfer_bench.machine import contracts, facts, machine, versions
from deepinfer_bench.opening import opened, require_fit
from deepinfer_bench.plots import draw, require_matplotlib
from deepinfer_bench.point import Plan, measure_point
from deepinfer_bench.report import FORMAT, as_csv, as_json, report, write
from deepinfer_bench.run import Bench
from deepinfer_bench.sweep import SweepFolder, grid, run_sweep
from deepinfer_bench.workload import Prompts, Shape, read_text, readable_ids, text_ids
from deepinfer_core import LLM
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import CommandUsageError, OutputError
from deepinfer_core.parameters.values import refuse

Tell = Callable[[str], None]


@frozen(eq=False)
class Session:
    """An open engine, and what every point on it shares."""

    bench: Bench
    prompts: Prompts
    ceilings: Ceilings | None
    """None: no memory was left to measure them."""
    head: Mapping[str, Any]

    def report(self, command: str, plan: Plan, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        ceilings = None if self.ceilings is None else self.ceilings.as_record()
        found = (self.prompts.seed, self.prompts.source, ceilings)
        return report(command, self.head, plan.as_record(), *found, points)


@contextmanager
def session(
    config: EngineConfig, shapes: Sequence[Shape], plan: Plan, layers: int | None, text: str | None, tell: Tell
) -> Iterator[Session]:
    """Open the engine, check that every shape fits, and measure the ceilings. ``text``: what prompts are cut from."""
    with opened(config, shapes, layers) as llm:
        require_fit(llm, shapes, plan)
        made = prompts_of(llm, config, shapes, text)
        ceilings = measure_ceilings(llm.assembly.backend.device)
        if ceilings is None:
            tell("ceilings: not measured, the device has no memory left for it; lower --kv-memory")
        else:
            tell(f"ceilings: copy {ceilings.copy / 1e9:,.1f} GB/s, matmul {ceilings.matmul / 1e12:,.3g} TFLOP/s")
        yield Session(Bench(llm), made, ceilings, facts(llm))


def prompts_of(llm: LLM, config: EngineConfig, shapes: Sequence[Shape], text: str | None) -> Prompts:
    vocab, seed = min(llm.built.vocab_size, llm.get_tokenizer().vocab_size), config.seed or 0
    ids = readable_ids(vocab, getattr(llm.assembly.model, "check_prompt", None))
    if text is None:
        return Prompts(ids, seed)
    longest = max(shape.prompt_tokens for shape in shapes)
    return Prompts(ids, seed, text_ids(text, llm.get_tokenizer().encode, longest))


def run_point(
    command: str, config: EngineConfig, options: Mapping[str, Any], profile_steps: int, tell: Tell
) -> dict[str, Any]:
    """The report of ``bench prefill`` or ``bench decode``."""
    text = None if options["text"] is None else read_text(options["text"])
    plan = Plan(options["steps"], options["rounds"], options["warm_up_rounds"], profile_steps, options["gc_every"])
    drafts = options["draft_tokens"]
    shape = Shape(options["batch"], options["prompt"], config.draft_tokens if drafts is None else drafts)
    with session(config, [shape], plan, options["layers"], text, tell) as made:
        point = measure_point(made.bench, shape, made.prompts, plan, made.ceilings, tell)
        return made.report(command, plan, [point])


def run_grid(config: EngineConfig, options: Mapping[str, Any], tell: Tell) -> tuple[dict[str, Any], int]:
    """The report of ``bench sweep`` with the points of all runs so far, and how many of this one's failed."""
    if options["plots"]:
        require_matplotlib()
    if not options["out"]:
        raise refuse("out", options["out"], "the path of a folder")
    plan = Plan(options["steps"], 1, options["warm_up_rounds"], 0, options["gc_every"])
    shapes = grid(options["batches"], options["prompts"], options["draft_tokens"] or [config.draft_tokens])
    layers, text = options["layers"], None if options["text"] is None else read_text(options["text"])
    with SweepFolder.opened(Path(options["out"]), shared(config, plan, layers, text)) as folder:
        try:
            failed = run_sweep(
                folder,
                shapes,
                lambda group: session(config, group, plan, layers, text, tell),
                lambda made, shape: measure_point(made.bench, shape, made.prompts, plan, made.ceilings, tell),
                lambda made, point: made.report("sweep", plan, [point]),
                tell,
            )
        except BaseException:
            done = sum(shape.name in folder.reports for shape in shapes)
            tell(f"{done} of {len(shapes)} points are in {folder.path}; the same command goes on from there")
            raise
        if options["plots"]:
            for path in draw(folder.points, folder.path):
                tell(f"drew {path}")
        first = folder.reports[shapes[0].name]
        return {**first, "points": folder.points}, failed


def shared(config: EngineConfig, plan: Plan, layers: int | None, text: str | None) -> dict[str, Any]:
    """What all points of a sweep have in common, known before an engine is made."""
    host = machine("cpu")
    own = ("draft_tokens", "max_num_seqs", "debug")
    return {
        "format": FORMAT,
        "machine": {key: host[key] for key in ("processor", "cores", "platform", "python")},
        "versions": versions(),
        "contracts": {name: info["hash"] for name, info in contracts().items()},
        "settings": {key: str(config.get(key)) for key in sorted(config.origins) if key not in own},
        "layers": layers,
        "text_sha256": None if text is None else hashlib.sha256(text.encode()).hexdigest(),
        "method": plan.as_record(),
    }


def check_outputs(out: Path | None, table: Path | None, plots: Path | None) -> None:
    """Raise OutputError for a path that cannot be written, before anything is measured."""
    if plots is not None:
        require_matplotlib()
    # Those of os.path: the methods of Path raise where a folder above may not be entered.
    for path in (out, table):
        if path is not None and os.path.isdir(path):
            raise OutputError(f"cannot write {path}", reason="it is a folder", remedy="give the path of a file")
        if path is not None and (os.path.isfile(path) or not os.path.exists(path)):  # a device is not replaced
            _require_writable(path, Path(os.path.realpath(path)).parent, "give the path of a file in a folder of yours")
    if out is not None and table is not None and os.path.realpath(out) == os.path.realpath(table):
        raise CommandUsageError(f"--out and --csv are both {out}", remedy="give each a file of its own")
    if plots is not None:  # which is made, with those above it
        there = next((folder for folder in (plots, *plots.parents) if os.path.exists(folder)), plots)
        _require_writable(plots, there, "give the path of a folder of yours")


def _require_writable(path: Path, folder: Path, remedy: str) -> None:
    if not os.path.isdir(folder) or not os.access(folder, os.W_OK | os.X_OK):
        reason = f"{folder} is no folder that can be written"
        raise OutputError(f"cannot write {path}", reason=reason, remedy=remedy)


def write_outputs(data: Mapping[str, Any], out: Path | None, table: Path | None, plots: Path | None) -> None:
    """Each file whole or not at all. Raises OutputError."""
    if out is not None:
        write(out, as_json(data))
    if table is not None:
        write(table, as_csv(data["points"]))
    if plots is not None:
        draw(data["points"], plots)
