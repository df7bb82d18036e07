"""The pages of ``docs/reference`` that follow from the code, one module a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from generators.commands import commands_page
from generators.environment import environment_page
from generators.errors import errors_page
from generators.hooks import hooks_page
from generators.interfaces import interfaces_page
from generators.manifest import manifest_page
from generators.records import records_page
from generators.settings import settings_page
from generators.structured_output import structured_output_page
from generators.workarounds import workarounds_page

PAGES: Mapping[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "environment.md": environment_page,
    "errors.md": errors_page,
    "hooks.md": hooks_page,
    "interfaces.md": interfaces_page,
    "manifest.md": manifest_page,
    "settings.md": settings_page,
    "structured-output.md": structured_output_page,
    "types.md": records_page,
    "workarounds.md": workarounds_page,
}
