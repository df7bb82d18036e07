"""Write every file generated from `contracts/schema/`; with --check, list those that differ and exit 1.

    python contracts/generate.py [--check] [--record VERSION]

A schema that changes what a release recorded in `contracts/history/` is refused (exit 2) with the field's name.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # the generator is not installed

from generator import history  # noqa: E402
from generator.outputs import render  # noqa: E402
from generator.reader import load  # noqa: E402
from generator.schema import SchemaError  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="generate.py", description="Generate contract code and documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a generated file differs")
    parser.add_argument("--record", metavar="VERSION", help="write history/VERSION.json at a release")
    parser.add_argument("--schema", type=Path, default=HERE / "schema", help="folder of the schemas")
    parser.add_argument("--history", type=Path, default=HERE / "history", help="folder of the released chains")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="repository root to write into")
    args = parser.parse_args(argv)
    try:
        schema = load(args.schema)
        history.check(schema, args.history)
        files = render(schema)
    except SchemaError as exc:
        print(f"generate.py: {exc}", file=sys.stderr)
        return 2
    if args.record:
        return _record(args.history / f"{args.record}.json", history.snapshot(schema, args.record))
    return _write(files, args.root, args.check)


def _record(path: Path, text: str) -> int:
    if path.exists():
        print(f"generate.py: {path.name} is released; a released chain is never written again", file=sys.stderr)
        return 2
    path.write_text(text, encoding="utf-8")
    print(f"recorded {path.name}")
    return 0


def _write(files: dict[str, str], root: Path, check: bool) -> int:
    differing = []
    for name, text in files.items():
        path = root / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differing.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if check and differing:
        print("generated files differ from the schemas; run python contracts/generate.py", file=sys.stderr)
        for name in differing:
            print(f"  {name}", file=sys.stderr)
        return 1
    print(f"{len(files)} files, {len(differing)} {'differ' if check else 'written'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
