"""Choose the grammar engine for structured output, when the first request asks for it.

``grammar_engine = "auto"`` takes the only one that can be used here; of several, the first-party one. An explicit name
is used or fails.
"""

from __future__ import annotations

from deepinfer_core.errors import DeepInferError, NotSupported, PluginConflict
from deepinfer_core.plugins.manager import PluginManager
from deepinfer_core.plugins.record import PluginRecord

FIRST_CHOICE = "xgrammar"
INSTALL = (
    "in a clone: pip install --no-deps -r requirements-xgrammar.txt; "
    "elsewhere: pip install 'deepinfer-samplers[xgrammar]' (with triton, 1 GB)"
)


def choose_grammar_engine(manager: PluginManager) -> PluginRecord:
    """The loaded plugin that ``config.grammar_engine`` asks for.

    :raises NotSupported: there is none that can be used; says what keeps those away that are installed.
    :raises PluginConflict: several can be used, and the settings name none.
    :raises PluginMissing: no plugin has the name; lists the installed ones.
    """
    name = manager.config.grammar_engine
    if name != "auto":
        return manager.require("grammar", name)
    refused: list[str] = []
    usable: list[PluginRecord] = []
    for record in manager.registry.of_kind("grammar", usable=False):
        unmet = record.unmet if record.usable else record.note or record.reason
        if unmet:
            refused.append(f"{record.origin}: {unmet}")
        else:
            usable.append(record)
    if not usable:
        raise no_engine(refused)
    own = [record for record in usable if record.name == FIRST_CHOICE]  # a reserved name: it is the first-party one
    if not own and len(usable) > 1:
        raise _ambiguous(usable)
    return manager.require("grammar", (own or usable)[0].name)


def no_engine(refused: list[str]) -> DeepInferError:
    """The refusal of a request that asks for structured output where nothing can compile its grammar."""
    return NotSupported(
        "structured output needs a grammar engine, and none can be used here",
        reason="; ".join(refused) or "no plugin provides one",
        remedy=INSTALL,
        details={"kind": "grammar", "refused": refused},
    )


def _ambiguous(usable: list[PluginRecord]) -> PluginConflict:
    names = [record.name for record in usable]
    return PluginConflict(
        f"{len(usable)} grammar engines are installed: " + ", ".join(record.origin for record in usable),
        reason="none of them is preferred, and the order of installation does not decide",
        remedy=f"choose one with --grammar-engine {names[0]}",
        details={"kind": "grammar", "installed": names},
    )
