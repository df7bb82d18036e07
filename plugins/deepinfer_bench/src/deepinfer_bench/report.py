"""A report as a file, as a table of numbers, and as text for a person."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from deepinfer_core.cli.streams import unwritable
from deepinfer_core.plugins.emulation import BANNER
from deepinfer_core.whole_file import write_whole

FORMAT = "deepinfer-bench 1"
COLUMNS = (
    ("point", "name"),
    ("batch", "batch"),
    ("prompt_tokens", "prompt_tokens"),
    ("draft_tokens", "draft_tokens"),
    ("prefill_step_p50_ms", "prefill.step_ms.p50"),
    ("prefill_tokens_per_s", "prefill.prompt_tokens_per_s"),
    ("prefill_kept", "prefill.kept"),
    ("prefill_steps", "prefill.steps"),
    ("step_p50_ms", "decode.step_ms.p50"),
    ("step_p90_ms", "decode.step_ms.p90"),
    ("step_p99_ms", "decode.step_ms.p99"),
    ("step_mean_ms", "decode.step_ms.mean"),
    ("kept", "decode.kept"),
    ("steps", "decode.steps"),
    ("dropped_gc", "decode.dropped.gc"),
    ("steady", "decode.settling.steady"),
    ("tokens_per_s", "decode.tokens_per_s"),
    ("user_tokens_per_s", "decode.user_tokens_per_s"),
    ("full_acceptance_tokens_per_s", "decode.full_acceptance.tokens_per_s"),
    ("accepted_share", "decode.acceptance.accepted_share"),
    ("outside_model_share", "decode.outside_model_share"),
    ("device_idle_share", "profile.decode.device_idle_share"),
    ("floor_share", "decode.roofline.floor_share"),
    ("emulated", "emulated"),
    ("error", "error.message"),
)
"""Column of the CSV -> place in a point's record."""


def schema() -> dict[str, Any]:
    """JSON Schema of a report."""
    found: dict[str, Any] = json.loads(files("deepinfer_bench").joinpath("report.schema.json").read_text("utf-8"))
    return found


def problem_of(data: Any) -> str:
    """What keeps ``data`` from being a report, with its place; empty if nothing does."""
    from jsonschema import Draft202012Validator  # 60 ms, of use to a sweep that goes on
    from jsonschema.exceptions import best_match

    found = best_match(Draft202012Validator(schema()).iter_errors(data))
    return "" if found is None else f"{found.json_path}: {found.message:.200}"


def report(command: str, facts: Mapping[str, Any], method: Mapping[str, Any], seed: int, source: str,
           ceilings: Mapping[str, Any] | None, points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:  # fmt: skip
    """The whole of it; ``schema`` says what is in each part. Points of an emulation are marked each, as tables and
    pictures have nothing else."""
    mark = {"emulated": True} if facts.get("emulated") else {}
    return {
        "format": FORMAT,
        "command": command,
        **facts,
        "seed": seed,
        "prompts": source,
        "method": dict(method),
        "ceilings": None if ceilings is None else dict(ceilings),
        "points": [{**point, **mark} for point in points],
    }


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def as_csv(points: Iterable[Mapping[str, Any]]) -> str:
    """One line for each point. An empty cell: not measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name for name, _ in COLUMNS])
    for point in points:
        writer.writerow([_cell(at(point, path)) for _, path in COLUMNS])
    return out.getvalue()


def at(record: Mapping[str, Any], path: str) -> Any:
    """``record["a"]["b"]`` for ``a.b``; None where a part is absent or null."""
    found: Any = record
    for part in path.split("."):
        if not isinstance(found, Mapping):
            return None
        found = found.get(part)
    return found


def _cell(value: Any) -> Any:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else value


def write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all. Raises OutputError."""
    try:
        write_whole(path, text)
    except OSError as err:
        raise unwritable(str(path), err) from err


def as_text(data: Mapping[str, Any]) -> str:
    return "\n".join(_lines(data)) + "\n"


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    machine, model = data["machine"], data["model"]
    where = machine.get("device_name") or machine["processor"]
    yield (
        f"{model['architecture']} ({model['weights']} weights) on {machine['device']}: {where}, "
        f"load {machine['load_1min']}"
    )
    if data.get("emulated"):
        yield BANNER
    if data["ceilings"] is not None:
        found = data["ceilings"]
        yield (
            f"ceilings of this run: copy {found['copy_bytes_per_s'] / 1e9:,.1f} GB/s, "
            f"matmul {found['matmul_flop_per_s'] / 1e12:,.3g} TFLOP/s ({found['matmul_dtype']})"
        )
    for point in data["points"]:
        yield ""
        yield from _point(point)


def _point(point: Mapping[str, Any]) -> Iterator[str]:
    drafts = f", {point['draft_tokens']} drafts" if point["draft_tokens"] else ""
    yield f"{point['batch']} request{'' if point['batch'] == 1 else 's'} of {point['prompt_tokens']} tokens{drafts}"
    if point.get("error"):
        yield f"  failed: {point['error']['code']}: {point['error']['message']}"
        return
    if point["prefill"]:
        yield from _segment("prefill", point["prefill"])
        yield f"    {_number(point['prefill']['prompt_tokens_per_s'])} prompt tokens/s{_roofline(point['prefill'])}"
    decode = point["decode"]
    if decode:
        yield from _segment("decode", decode)
        settled = "steady" if decode["settling"]["steady"] else "not steady"
        drift = "" if decode["drift"] is None else f"; last quarter over first {_number(decode['drift'])}"
        yield f"    {settled} after {decode['settling']['steps']} steps{drift}"
        yield (
            f"    {_number(decode['tokens_per_s'])} tokens/s, {_number(decode['user_tokens_per_s'])} for each request"
            + _roofline(decode)
        )
        if decode["acceptance"]:
            full, measured = decode["full_acceptance"], decode["acceptance"]
            share = measured["accepted_share"]
            yield (
                f"    {_number(full['tokens_per_s'])} tokens/s if every draft were accepted; accepted were "
                f"{'-' if share is None else f'{share:.0%}'}, {_number(measured['tokens_per_request_step'])} a step"
            )
        yield f"    outside model and sampler {_percent(decode['outside_model_share'])} of a step{_idle(point)}"


def _segment(name: str, segment: Mapping[str, Any]) -> Iterator[str]:
    step = segment["step_ms"]
    dropped = ", ".join(f"{count} {reason}" for reason, count in segment["dropped"].items() if count)
    yield (
        f"  {name}: step p50 {_number(step['p50'])} ms, p90 {_number(step['p90'])}, p99 {_number(step['p99'])}; "
        f"{segment['kept']} of {segment['steps']} steps count" + (f" (dropped: {dropped})" if dropped else "")
    )


def _roofline(segment: Mapping[str, Any]) -> str:
    found = segment["roofline"]
    return "" if found is None else f"; {_percent(found['floor_share'])} of the roofline"


def _idle(point: Mapping[str, Any]) -> str:
    idle = at(point, "profile.decode.device_idle_share")
    return "" if idle is None else f"; device idle {_percent(idle)}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
