"""The page of errors: every code with its cause and remedy, and the exit statuses."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from deepinfer_core import errors
from deepinfer_core.errors import exit_statuses
from generators.docstrings import attribute_texts, read_docstring, source_tree
from generators.markdown import NOTICE, cell, prose

ORDER = ("usage", "plugins", "backends", "models", "engine")
HEAD = """\
Every failure that a person can meet has a class, a stable code and an exit status. The text names what
failed with its values, then the reason and the remedy:

```text
deepinfer: E_BACKEND_MISSING: no backend named 'ascent'; did you mean 'ascend'?
  reason: installed backends: ascend, cpu
  remedy: deepinfer --backend ascend ..., or pip install the plugin that provides 'ascent'
```

With `--json` the same error is one JSON object with `code`, `message`, `reason`, `remedy` and `details`.
With `--debug` a traceback comes first. In Python the classes are in `deepinfer_core.errors`; all of them
are `DeepInferError`. What a message says of its own case goes before what stands here.
"""


def errors_page() -> str:
    sections = _by_module(list(error_classes(errors.DeepInferError)))
    lines = ["# Errors", "", NOTICE, HEAD, "| code | exit status | meaning |", "| --- | --- | --- |"]
    for cls in (cls for _, group in sections for cls in group):
        summary = cell(read_docstring(cls, cls.__name__).summary)
        lines.append(f"| [`{cls.code}`](#{cls.code.lower()}) | {cls.exit_status} | {summary} |")
    for module, group in sections:
        lines += ["", f"## {module.capitalize()}"]
        for cls in group:
            lines += ["", *_entry(cls)]
    lines += ["", "## Exit statuses", "", "| status | meaning |", "| --- | --- |"]
    texts = attribute_texts(source_tree(exit_statuses).body)
    for name, status in sorted(_exit_statuses().items(), key=lambda item: item[1]):
        if not texts[name]:
            raise SystemExit(f"deepinfer_core.errors.exit_statuses.{name} has no text below it: say what it means")
        lines.append(f"| {status} | {cell(texts[name])} |")
    return "\n".join(lines) + "\n"


def error_classes(base: type[errors.DeepInferError]) -> Iterator[type[errors.DeepInferError]]:
    """``base`` and its subclasses in the order of the modules, each before its own subclasses."""
    yield base
    for derived in base.__subclasses__():
        if derived.__module__.startswith("deepinfer_core."):
            yield from error_classes(derived)


def _by_module(classes: list[type[errors.DeepInferError]]) -> list[tuple[str, list[type[errors.DeepInferError]]]]:
    groups: dict[str, list[type[errors.DeepInferError]]] = {}
    for cls in classes:
        groups.setdefault(cls.__module__.rpartition(".")[2], []).append(cls)
    base = groups.pop("base", [])
    groups["engine"] = base + groups.get("engine", [])
    return [(name, groups.pop(name)) for name in ORDER if name in groups] + sorted(groups.items())


def _entry(cls: type[errors.DeepInferError]) -> list[str]:
    said = read_docstring(cls, cls.__name__)
    if not said.cause or not said.remedy:
        raise SystemExit(f"{cls.__module__}.{cls.__name__}: its docstring lacks :cause: or :remedy:")
    if "code" not in vars(cls):
        raise SystemExit(f"{cls.__module__}.{cls.__name__} has no code of its own")
    bases = ", ".join(f"`{base.__name__}`" for base in inspect.getmro(cls)[1:] if base in cls.__bases__)
    return [
        f"### {cls.code}",
        "",
        prose(said.summary),
        "",
        f"* Cause: {prose(said.cause)}",
        f"* Remedy: {prose(said.remedy)}",
        f"* Exit status {cls.exit_status}; class `{cls.__name__}`, a kind of {bases}.",
    ]


def _exit_statuses() -> dict[str, int]:
    return {name: number for name, number in vars(exit_statuses).items() if name.startswith("EXIT_")}
