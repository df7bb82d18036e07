"""Which files are generated, and from what: repository path -> text."""

from __future__ import annotations

from generator import emit_c, emit_checks, emit_docs, emit_numpy, emit_python
from generator.schema import Schema

PACKAGE = "contracts/src/deepinfer_contracts"
DOCS = "docs/reference/contracts"


def render(schema: Schema) -> dict[str, str]:
    """Text of every generated file by its path from the repository root. Raises SchemaError for a wrong check."""
    header, cdef = emit_c.header(schema), emit_c.cdef(schema)
    out = {
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
        f"{DOCS}/index.md": emit_docs.index_page(schema),
        f"{DOCS}/enums.md": emit_docs.enum_page(schema),
        f"{DOCS}/ops.md": emit_docs.op_page(schema),
    }
    for c in schema.contracts:
        out[f"{DOCS}/{c.file}.md"] = emit_docs.page(schema, c)
        out[f"{DOCS}/{c.file}.schema.json"] = emit_docs.json_schema(schema, c)
    return out
