"""A plugin is broken, does not fit, or is not there."""

from __future__ import annotations

from deepinfer_core.errors.base import DeepInferError
from deepinfer_core.errors.exit_statuses import EXIT_BACKEND


class PluginError(DeepInferError):
    """A plugin failed: ``phase`` is import, register, probe or create.

    :cause: The plugin's code raised an exception, exited, or does not fit the hooks; the message has its text and line.
    :remedy: Run ``deepinfer doctor NAME``; update the plugin, or leave it out with ``--no-plugin NAME``.
    """

    code = "E_PLUGIN"
    exit_status = EXIT_BACKEND


class ManifestError(PluginError):
    """A plugin's ``deepinfer.toml`` is missing, malformed, or does not fit its entry points.

    :cause: The distribution is damaged, written for another schema, or takes a name that is reserved.
    :remedy: Users: update it, or uninstall it. Authors: correct the file at the place that is named.
    """

    code = "E_MANIFEST"


class ApiVersionError(PluginError):
    """A plugin needs another plugin API version than this core provides; names both.

    :cause: Plugin and core are of different times.
    :remedy: Update both, or install a release of the plugin whose range has this core's version.
    """

    code = "E_API"


class ContractError(PluginError):
    """Two sides disagree on a record; names the contract and the first differing field.

    :cause: Compiled code was built for another definition of a record.
    :remedy: Install builds that belong together: update the plugin and deepinfer-core.
    """

    code = "E_CONTRACT"


class HookReturnError(PluginError):
    """A hook returned something else than its specification says; names hook, plugin and type.

    :cause: A fault of the plugin that is named.
    :remedy: Update or leave out the plugin; its authors find the expected type in the reference of hooks.
    """

    code = "E_HOOK_RETURN"


class PluginConflict(PluginError):
    """Two distributions provide the same name, and no setting says which one wins.

    :cause: Two distributions are installed that offer the same thing.
    :remedy: Uninstall one, or say ``--prefer KIND:NAME=DISTRIBUTION``.
    """

    code = "E_PLUGIN_CONFLICT"


class PluginMissing(PluginError):
    """No installed plugin has the name that was asked for; lists those that are there.

    :cause: The name is misspelt, or its distribution is not installed in this environment.
    :remedy: Take one of the names that are listed, or install what provides it.
    """

    code = "E_PLUGIN_MISSING"


class PluginLockError(PluginError):
    """A plugin is not as the plugin lock has it, or as another process of the run has it; names field and both values.

    :cause: A distribution was updated, removed or changed since the lock was written, or ranks run in environments that
        differ.
    :remedy: Install what is locked, or write the lock again: ``deepinfer plugins lock --out FILE``.
    """

    code = "E_PLUGIN_LOCK"
