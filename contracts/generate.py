"""Write every file generated from `contracts/schema/`; with --check, list those that differ and exit 1.

python contracts/generate.py [--check] [--root DIR]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from generator.outputs import render  # noqa: E402
from generator.schema import SchemaError  # noqa: E402


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="generate.py", description="Generate contract code and documents.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a generated file differs")
    parser.add_argument("--schema", type=Path, default=HERE / "schema", help="folder of the schemas")
    parser.add_argument("--root", type=Path, default=HERE.parent, help="repository root to write into")
    args = parser.parse_args(argv)
    try:
        files = render(args.schema)
    except SchemaError as exc:
        print(f"generate.py: {exc}", file=sys.stderr)
        return 2
    differing = []
    for name, text in files.items():
        path = args.root / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differing.append(name)
        if not args.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if args.check and differing:
        print("generated files differ from the schemas; run python contracts/generate.py", file=sys.stderr)
        for name in differing:
            print(f"  {name}", file=sys.stderr)
        return 1
    print(f"{len(files)} files, {len(differing)} {'differ' if args.check else 'written'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
