"""The command.

Exit status: 0 every stage passed, 1 one did not, 2 usage, 74 the report cannot be written, 130 interrupted.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from pathlib import Path

from deepinfer_ascend.first_day.report import add, opening
from deepinfer_ascend.first_day.running import Result, run
from deepinfer_ascend.first_day.stages import NAMES, Options, stages

CANNOT_WRITE, INTERRUPTED = 74, 130


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m deepinfer_ascend.first_day",
        description="Find out on a machine with an Ascend 950 what holds, and write one file to send back.",
        epilog=f"Stages, in order: {', '.join(NAMES)}.",
    )
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    default = Path(f"ascend-first-day-{now}.json")
    parser.add_argument(
        "--out", type=Path, default=default, metavar="FILE", help="the report (./ascend-first-day-TIME.json)"
    )
    parser.add_argument(
        "--emulate", action="store_true", help="rehearse: the plugin's code on the processor, no device"
    )
    parser.add_argument("--device", metavar="npu:N", help="device to run on (the first)")
    parser.add_argument(
        "--level", default="core", choices=("smoke", "core", "full"), help="of the conformance kit (core)"
    )
    parser.add_argument("--only", metavar="STAGE,...", help="these stages alone")
    options = parser.parse_args(argv)
    chosen = options.only.split(",") if options.only else list(NAMES)
    unknown = sorted(set(chosen) - set(NAMES))
    if unknown:
        parser.error(f"no stage {', '.join(unknown)}; there are {', '.join(NAMES)}")
    if options.emulate and options.device:
        parser.error("--device goes with a device, and --emulate runs on the processor")
    options.only = chosen
    return options


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    report = opening(options.emulate)
    ended = "passed"
    with tempfile.TemporaryDirectory(prefix="ascend-first-day-") as folder:
        todo = stages(Options(options.emulate, options.device, options.level), Path(folder))
        for stage in todo:
            if stage.name not in options.only:
                continue
            _tell(f"{stage.name}: {stage.what} ...")
            try:
                result = run(stage)
                add(report, result, options.out)
            except KeyboardInterrupt:
                _tell(f"interrupted; {options.out} has the stages before")
                return INTERRUPTED
            except OSError as exc:
                _tell(f"the report cannot be written: {exc}")
                return CANNOT_WRITE
            ended = "failed" if result.status != "passed" else ended
            _tell(_line(result))
    sys.stdout.write(f"{options.out}\n")
    _tell("send this file back" if not options.emulate else "a rehearsal: it says nothing of a device")
    return int(ended == "failed")


def _line(result: Result) -> str:
    """``  failed after 12.3 s, exit status 1: its last line``; of a rehearsal, what it was, on a line of its own."""
    emulated = f"\n  emulated: {result.rehearsed}" if result.rehearsed else ""
    if result.status == "passed":
        return f"  passed in {result.seconds} s{emulated}"
    last = next((line for line in reversed(result.output.splitlines()) if line.strip()), "it printed nothing")
    told = f"  {result.status} after {result.seconds} s, exit status {result.exit_status}: {last.strip()[:200]}"
    return told + emulated


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
