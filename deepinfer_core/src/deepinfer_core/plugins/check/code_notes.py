"""What the text of a plugin module says about loading it: its hooks, their arguments, and the import budget."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator

from deepinfer_core.plugins.check.code import Hook, read_module
from deepinfer_core.plugins.check.notes import Note
from deepinfer_core.plugins.check.subject import Files
from deepinfer_core.settings import did_you_mean

IMPORT_BUDGET_MS = 150
COMMANDS_HOOK = "deepinfer_cli_commands"


def module_notes(files: Files, value: str, kinds: Collection[str], *, has_commands: bool) -> Iterator[Note]:
    """Notes about the module that an entry point names.

    :param value: The entry point's value.
    :param kinds: Kinds of plugins that it provides.
    :param has_commands: Whether the manifest declares commands of one of them.
    """
    module, _, attribute = (part.strip() for part in value.partition(":"))
    text = read_module(files, module)
    if text.problem:
        yield Note("problem", "code", text.problem, "correct the entry point, or the module")
        return
    if not text.has_text or attribute:
        yield Note("warning", "code", f"{value} cannot be read as text, so its hooks are not known")
        return
    yield from _hook_notes(module, kinds, text.hooks)
    if has_commands and not _has(text.hooks, COMMANDS_HOOK):
        detail = f"{module} has no {COMMANDS_HOOK}, and its manifest declares commands"
        yield Note("problem", "code", detail, "implement the hook, or remove commands")
    for found in text.heavy:
        detail = f"{found.where} imports {found.module} when the plugin is loaded"
        yield Note("problem", "import budget", detail, "import it inside the function that needs it")
    if not text.heavy:
        detail = f"{module} imports no heavy library; the {IMPORT_BUDGET_MS} ms are measured by the conformance kit"
        yield Note("ok", "import budget", detail)


def _hook_notes(module: str, kinds: Collection[str], hooks: Collection[Hook]) -> Iterator[Note]:
    from deepinfer_core import hookspecs
    from deepinfer_core.plugins.required_hooks import REQUIRED_HOOKS

    known = {name for name in vars(hookspecs) if name.startswith("deepinfer_")}
    problems = 0
    for hook in hooks:
        if hook.name not in known:
            if hook.is_optional or not hook.name.startswith("deepinfer_"):
                continue
            problems += 1
            text = f"{hook.where}: unknown hook {hook.name!r}{did_you_mean(hook.name, known)}"
            yield Note("problem", "code", text, "the reference of hooks has every name")
            continue
        allowed = list(inspect.signature(getattr(hookspecs, hook.name)).parameters)
        for argument in hook.arguments or ():
            if argument not in allowed:
                problems += 1
                guess = did_you_mean(argument, allowed)
                text = f"{hook.where}: {hook.name} has no argument {argument!r}"
                yield Note("problem", "code", text + (guess or f"; it has {', '.join(allowed) or 'none'}"))
    for kind in sorted(kinds):
        for name in REQUIRED_HOOKS.get(kind, ()):
            if not _has(hooks, name):
                problems += 1
                text = f"{module} has no {name}, which a {kind} plugin needs"
                yield Note("problem", "code", text, "implement it, or import it into the module")
    if not problems:
        yield Note("ok", "code", f"{module}: {', '.join(sorted({hook.name for hook in hooks})) or 'no hook'}")


def _has(hooks: Collection[Hook], name: str) -> bool:
    return any(hook.name == name for hook in hooks)
