"""The page of ``deepinfer.toml``: every key that the reader allows."""

from __future__ import annotations

from collections.abc import Sequence

from deepinfer_core.plugins.manifest import MAX_BYTES
from deepinfer_core.plugins.manifest_keys import COMMAND_KEYS, CONTRACT_KEYS, PLUGIN_KEYS, REQUIRES_KEYS, TOP_KEYS, Key
from generators.markdown import NOTICE, cell

EXAMPLE = """schema = 1
api = ">=1.0,<2"

[[backend]]
name = "acme"
summary = "Acme accelerators of the second generation"
arch = ["acme2"]
claims = ["feature:graphs", "kv:v41_fp4"]
requires = { os = ["linux"], any_path = ["/dev/acme*"] }
commands = [{ name = "acme-top", summary = "What the devices are doing." }]

[[sampler]]
name = "acme_draw"
summary = "Draws on the device\""""


def manifest_page() -> str:
    lines = [
        "# Manifest: `deepinfer.toml`",
        "",
        NOTICE,
        "The static description of a distribution's plugins. It lies in the top-level package, is named by the one",
        "entry point of the distribution in group `deepinfer.manifest` (value `PACKAGE:deepinfer.toml`), and is",
        f"read as text before anything is imported. It is UTF-8, at most {MAX_BYTES >> 10} KiB. Each `[[KIND]]` table",
        "belongs to the entry point of the same name in group `deepinfer.KINDs`, and each such entry point needs",
        "its table. An unknown key makes the distribution's plugins `invalid` (`E_MANIFEST`), because a misspelt",
        "one would be a promise that nobody checks. `deepinfer plugins check PATH` tells everything that is wrong",
        "with one, before its release.",
        "",
        "```toml",
        EXAMPLE,
        "```",
        "",
        "## Top level",
        "",
        *_table(TOP_KEYS),
        "",
        "## `[[backend]]`, `[[model]]`, and the tables of the other kinds",
        "",
        *_table(PLUGIN_KEYS),
        "",
        "## `requires`",
        "",
        *_table(REQUIRES_KEYS),
        "",
        "## `commands`",
        "",
        "A first-party command, and one of an extension that the settings enable or of a plugin that they allow by",
        "name, runs as `deepinfer NAME`. `deepinfer DISTRIBUTION.NAME` always works, also where two have one name.",
        "",
        *_table(COMMAND_KEYS),
        "",
        "## `[contracts.NAME]`",
        "",
        *_table(CONTRACT_KEYS),
    ]
    return "\n".join(lines) + "\n"


def _table(keys: Sequence[Key]) -> list[str]:
    rows = ["| key | needed | values | meaning |", "| --- | --- | --- | --- |"]
    for key in keys:
        needed = "yes" if key.required else "no"
        of = f"Of {' and '.join(key.kinds)}s. " if key.kinds else ""
        rows.append(f"| `{key.name}` | {needed} | {cell(key.values)} | {of}{cell(key.help)} |")
    return rows
