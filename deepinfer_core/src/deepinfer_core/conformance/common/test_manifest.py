"""The static description and the module say the same (``spec/plugins.md`` 1, 2, 7)."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest

from deepinfer_core import API_VERSION, hookspecs
from deepinfer_core.conformance.failures import fail, require, require_equal
from deepinfer_core.conformance.subject import Subject
from deepinfer_core.plugins.manager import PluginManager, load_entry_point, new_pluggy_manager

pytestmark = pytest.mark.level("smoke")


def test_manifest_says_in_words_what_the_plugin_is(subject: Subject) -> None:
    require(subject.record.table.summary.strip(), f"[[{subject.kind}]] {subject.name!r} has no summary")
    require_equal(len(subject.record.table.summary.splitlines()), 1, "the summary is one line")


def test_api_range_has_an_end(subject: Subject) -> None:
    """A range without an upper end promises to work with versions that may remove hooks."""
    from packaging.specifiers import SpecifierSet

    accepted = SpecifierSet(subject.manifest.api)
    above = f"{API_VERSION[0] + 1}.0"
    require(not accepted.contains(above), "the API range takes the next major version", got=subject.manifest.api)


def test_entry_point_lies_in_the_package_of_the_manifest(subject: Subject) -> None:
    module = subject.record.entry.value.partition(":")[0].strip()
    package = subject.manifest.path.parent.name
    require_equal(module.partition(".")[0], package, "the manifest belongs to another package than the entry point")


def test_module_registers_without_problems(manager: PluginManager, subject: Subject) -> None:
    """Hook names, names of arguments and the hooks of its kind were checked when it was loaded."""
    require_equal(subject.record.state, "loaded", "the plugin is not loaded")
    require(subject.record in manager.loaded, "the plugin is not loaded")


def test_hooks_have_no_defaults_and_no_positional_only_arguments(manager: PluginManager, subject: Subject) -> None:
    """pluggy takes an argument with a default for one that the implementation does not want, and never passes it."""
    plugin = load_entry_point(subject.record.entry)
    relay = new_pluggy_manager()
    known = {name for name in vars(hookspecs) if name.startswith("deepinfer_")}
    for name in sorted(known & set(dir(plugin))):
        implementation = getattr(plugin, name)
        if relay.parse_hookimpl_opts(plugin, name) is None or isinstance(implementation, ModuleType):
            continue
        for parameter in inspect.signature(implementation).parameters.values():
            if parameter.default is not inspect.Parameter.empty:
                fail("a hook's argument has a default, so that it is never passed", hook=name, argument=parameter.name)
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                fail("a hook's argument is positional only; hooks are called by name", hook=name)
