"""The page of settings: key, default, range, environment variable and meaning of each."""

from __future__ import annotations

from deepinfer_core.cli.root import option_arity, root
from deepinfer_core.config import EngineConfig, settings_by_key
from generators.markdown import NOTICE, cell, value


def settings_page() -> str:
    defaults = EngineConfig()
    options = option_arity(root, "generate")
    flagless = [key for key in settings_by_key() if "." not in key and f"--{key.replace('_', '-')}" not in options]
    lines = [
        "# Settings",
        "",
        NOTICE,
        "A setting is given by a flag (or an argument of `LLM`), in a TOML file (`--config FILE`), or in the",
        "environment; the first of these that has it wins, and the default comes last. An unknown key in the file is",
        "an error; an unknown `DEEPINFER_` variable gives a warning with the nearest name. Keys with a dot stand in",
        "the tables `[plugins]` and `[observe]` of the file. "
        + ", ".join(f"`{key}`" for key in flagless)
        + " and `plugins.allow` have no flag.",
        "",
        "| key | default | values | environment | meaning |",
        "| --- | --- | --- | --- | --- |",
    ]
    for key, declared in settings_by_key().items():
        cells = (f"`{key}`", value(defaults.get(key)), declared.range_text(), f"`{declared.env_name(key)}`")
        lines.append(f"| {' | '.join(cells)} | {cell(declared.help)} |")
    return "\n".join(lines) + "\n"
