"""The table of contracts that the native library exports: names, versions, sizes, chains and fields."""

from __future__ import annotations

from generator.schema import Schema


def quoted(text: str) -> str:
    """``text`` as a C string."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def contract_table(schema: Schema) -> str:
    """The table, and the function that gives it."""
    parts, rows = [], []
    for c in schema.contracts:
        names = ",\n".join(f"    {quoted(f'{n}:{d}')}" for n, d in c.links)
        parts.append(f"static const uint64_t chain_{c.file}[] = DI_CHAIN_{c.macro};\n")
        parts.append(f"static const char *const fields_{c.file}[] = {{\n{names},\n}};\n")
        rows.append(
            f"    {{{quoted(c.name)}, {quoted(c.version)}, DI_FIELDS_{c.macro}, (uint32_t)sizeof({c.struct}),\n"
            f"     chain_{c.file}, {quoted(c.semantic_hash)}, fields_{c.file}}},\n"
        )
    return (
        "".join(parts)
        + f"\nstatic const di_contract_info contracts[] = {{\n{''.join(rows)}}};\n\n"
        + "const di_contract_info *di_contracts(int *n)\n{\n"
        + "    if (n != NULL) *n = (int)(sizeof contracts / sizeof contracts[0]);\n    return contracts;\n}\n"
    )
