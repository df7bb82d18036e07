"""Which files are generated, and from what: repository path -> text."""

from __future__ import annotations

from pathlib import Path

from generator import emit_c, emit_checks, emit_numpy, emit_python
from generator.schema import load

PACKAGE = "contracts/src/deepinfer_contracts"


def render(schema_folder: Path) -> dict[str, str]:
    """Text of every generated file by its path from the repository root. Raises SchemaError."""
    schema = load(schema_folder)
    header, cdef = emit_c.header(schema), emit_c.cdef(schema)
    return {
        f"{PACKAGE}/_enums.py": emit_python.enums(schema),
        f"{PACKAGE}/_records.py": emit_python.records(schema),
        f"{PACKAGE}/_chains.py": emit_python.chains(schema),
        f"{PACKAGE}/_validators.py": emit_numpy.validators(schema),
        f"{PACKAGE}/_ops.py": emit_python.ops(schema),
        f"{PACKAGE}/include/di_contracts.h": header,
        f"{PACKAGE}/cdef.txt": cdef,
        "native/include/di_contracts.h": header,  # copies: an isolated build of native needs no sibling
        "native/cdef.txt": cdef,
        "native/src/di_checks.c": emit_checks.checks(schema),
    }
