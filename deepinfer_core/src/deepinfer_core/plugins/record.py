"""One plugin of the environment: where it comes from, and the state it is in (``spec/plugins.md`` 4).

::

    found --load--> loaded                       disabled      by configuration, or not in the plugin lock
      |                                          invalid       manifest, name, or a reserved name taken
      +--> failed (import, register,             incompatible  plugin API, contract, or the plugin lock
           probe, create)                        conflict      two distributions give one name
                                                 shadowed      another distribution is preferred for the name

Every state but ``found`` and ``loaded`` is an end state with ``phase``, ``code``, ``reason`` and ``remedy``.
"""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Literal

from attrs import define

from deepinfer_core.errors import DeepInferError
from deepinfer_core.plugins.host import unmet_requires
from deepinfer_core.plugins.manifest import Manifest, PluginTable

State = Literal["found", "loaded", "disabled", "invalid", "incompatible", "conflict", "shadowed", "failed"]


@define
class PluginRecord:
    """One plugin: where it comes from and what became of it."""

    kind: str
    name: str
    distribution: str
    version: str
    entry: metadata.EntryPoint
    folder: Path | None
    editable: bool
    table: PluginTable
    manifest: Manifest | None = None
    state: State = "found"
    phase: str = ""
    error: DeepInferError | None = None
    note: str = ""
    """The state's reason in a few words, for a table."""

    @property
    def key(self) -> str:
        return f"{self.kind}:{self.name}"

    @property
    def title(self) -> str:
        """``backend toy (acme-toy 1.0)``: kind, name and the distribution to blame."""
        return f"{self.kind} {self.origin}"

    @property
    def origin(self) -> str:
        """``toy (acme-toy 1.0)``."""
        return f"{self.name} ({self.distribution} {self.version})"

    @property
    def usable(self) -> bool:
        return self.state in ("found", "loaded")

    @property
    def code(self) -> str:
        return self.error.code if self.error else ""

    @property
    def reason(self) -> str:
        """What is wrong, in one line."""
        return self.error.what if self.error else ""

    @property
    def remedy(self) -> str:
        return self.error.remedy if self.error else ""

    @property
    def faulty(self) -> bool:
        """In an end state that nobody chose."""
        return self.state in ("invalid", "incompatible", "conflict", "failed")

    @property
    def unmet(self) -> str:
        """Why a plugin with nothing wrong cannot be used on this host, by its manifest; empty where it can."""
        return unmet_requires(self.table.requires) if self.usable else ""

    @property
    def detail(self) -> str:
        """One cell of a table: the summary, or what is wrong, or what this host lacks."""
        if not self.usable:
            return self.note or self.reason
        return f"cannot be used here: {self.unmet}" if self.unmet else self.table.summary

    @property
    def contracts(self) -> list[str]:
        """``SchedulerOutputs 14 9f31c05be2a4d7f0``: what its compiled code reads, by its manifest."""
        tables = self.manifest.contracts if self.manifest else {}
        return [f"{name} {table.fields} {table.chain}" for name, table in sorted(tables.items())]

    @property
    def short_location(self) -> str:
        """``site-packages/acme``, or the whole path of an editable one: all of those end with ``src/acme``."""
        if self.folder is None:
            return "-"
        return f"{self.folder} (editable)" if self.editable else "/".join(self.folder.parts[-2:])

    def remedy_for(self, users: str) -> str:
        """``users``, or what the author does, who is the one to have the plugin installed in place."""
        if not self.editable or self.folder is None:
            return users
        return f"correct it in {self.folder}, or leave it out with --no-plugin {self.name}"

    def end(self, state: State, phase: str, error: DeepInferError, note: str = "") -> None:
        """Enter an end state. The first one stays: a later failure would hide its cause."""
        if self.usable:
            self.state, self.phase, self.error, self.note = state, phase, error, note
