"""Step 4: import a plugin that is needed, check it against the hookspecs, and keep its failure to itself.

Every plugin has a pluggy manager of its own. Its hooks are checked there, and every call goes through it, so no plugin
can answer for another. A ``register`` that fails leaves hooks behind in pluggy <= 1.6: here, in a manager that is
thrown away (``spec/plugins.md`` 4).
"""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from typing import TYPE_CHECKING, Any

import pluggy

from deepinfer_core import API_VERSION, hookspecs
from deepinfer_core.config import EngineConfig
from deepinfer_core.errors import BackendNotInstalled, PluginError
from deepinfer_core.plugins.failure import exception_text, plugin_failure
from deepinfer_core.plugins.lock import PluginLock, together
from deepinfer_core.plugins.names import FIRST_PARTY
from deepinfer_core.plugins.record import PluginRecord
from deepinfer_core.plugins.registry import Registry
from deepinfer_core.plugins.required_hooks import REQUIRED_HOOKS
from deepinfer_core.plugins.torch_extensions import left_out
from deepinfer_core.plugins.tracing import trace_calls
from deepinfer_core.settings import did_you_mean

LOG = logging.getLogger("deepinfer.plugins")
_CURRENT: ContextVar[tuple[PluginManager, PluginRecord] | None] = ContextVar("deepinfer_plugin", default=None)


class PluginManager:
    """The registry with loading. One for each engine."""

    def __init__(self, registry: Registry, config: EngineConfig) -> None:
        self.registry = registry
        self.config = config
        self.loaded: list[PluginRecord] = []
        """In order of loading."""
        self._relays: dict[str, pluggy.HookRelay] = {}
        self._by_module: dict[tuple[str, str], pluggy.HookRelay] = {}

    @classmethod
    def from_config(cls, config: EngineConfig, entries: Iterable[metadata.EntryPoint] | None = None) -> PluginManager:
        """A manager over the installed plugins, or over ``entries``.

        Nothing is imported for it.

        :raises PluginLockError: they are not as ``plugins.lock`` has them.
        :raises DeepInferError: under ``strict_plugins``, the error of the first plugin that cannot be used.
        """
        registry = Registry.build(config, entries)
        if registry.lock_problems:
            raise together(registry.lock_problems)
        faulty = next((record for record in registry.records if record.faulty), None)
        if config.strict_plugins and faulty is not None and faulty.error is not None:
            raise faulty.error
        return cls(registry, config)

    def lock(self) -> PluginLock:
        """The plugins that were loaded, in that order: what another process of the same run must have."""
        return PluginLock.of(self.loaded)

    def require(self, kind: str, name: str) -> PluginRecord:
        """Load the plugin that a person named, or that a model needs.

        :raises DeepInferError: when no plugin has the name (listing those that are installed), or the one that has it
            cannot be used; the error is that plugin's own.
        """
        record = self.registry.find(kind, name)
        if record is None:
            raise backend_missing(self.registry, name) if kind == "backend" else self.registry.missing(kind, name)
        self.load(record)
        if record.error is not None:
            raise record.error
        return record

    def load(self, record: PluginRecord) -> bool:
        """Import and register the plugin. False if it cannot be used; its record then says why. Never tried twice.

        Under ``strict_plugins`` a failure is raised instead.
        """
        if record.state != "found":
            return record.state == "loaded"
        module = (record.distribution, record.entry.value)
        relay = self._by_module.get(module)
        if relay is None:
            relay = self._load_module(record)
        if relay is not None and not self._check_required(record, relay):
            relay = None
        if relay is None:
            return False
        self._by_module[module] = relay
        self._relays[record.key] = relay
        record.state = "loaded"
        self.loaded.append(record)
        module_name = record.entry.value.partition(":")[0].strip()
        LOG.info("loaded %s from %s", record.title, getattr(sys.modules.get(module_name), "__file__", record.folder))
        return True

    def hook(self, record: PluginRecord, name: str) -> pluggy.HookCaller | None:
        """The plugin's own implementation of a hook, as a caller; None if it has none."""
        caller: pluggy.HookCaller = getattr(self._relays[record.key], name)
        return caller if caller.get_hookimpls() else None

    def fail(self, record: PluginRecord, phase: str, exc: BaseException) -> None:
        """Keep the failure in the record, or raise it under ``strict_plugins``."""
        error = plugin_failure(record, phase, exc)
        record.end("failed", phase, error, exception_text(exc) if error is not exc else "")
        if self.config.strict_plugins:
            raise error from exc

    def _new_manager(self) -> pluggy.PluginManager:
        manager = new_pluggy_manager()
        if self.config.trace_hooks:
            trace_calls(manager, self._title)
        return manager

    def _title(self, key: str) -> str:
        """Of the plugin whose hook runs; several plugins of one module are registered under the first one's key."""
        current = _CURRENT.get()
        if current is not None and current[0] is self:
            return current[1].title
        return next((record.title for record in self.registry.records if record.key == key and record.usable), key)

    def _load_module(self, record: PluginRecord) -> pluggy.HookRelay | None:
        phase = "import"
        try:
            plugin = load_entry_point(record.entry)
            phase = "register"
            own = self._new_manager()
            register_checked(own, plugin, record.key, record)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:  # also SystemExit, and a panic of a compiled extension
            self.fail(record, phase, exc)
            return None
        relay: pluggy.HookRelay = own.hook
        return relay

    def _check_required(self, record: PluginRecord, relay: pluggy.HookRelay) -> bool:
        lacking = [name for name in REQUIRED_HOOKS.get(record.kind, ()) if not getattr(relay, name).get_hookimpls()]
        if lacking:
            self.fail(
                record,
                "register",
                PluginError(
                    f"{record.title} does not implement {', '.join(lacking)}",
                    reason=f"a {record.kind} plugin needs {', '.join(REQUIRED_HOOKS[record.kind])}",
                    remedy=record.remedy_for(f"ask the authors of {record.distribution}, or pip uninstall it"),
                ),
            )
        return not lacking

    @contextmanager
    def calling(self, owner: PluginRecord) -> Iterator[None]:
        """While a hook of ``owner`` runs, :func:`current_manager` is this one (``build_backend`` needs it)."""
        token = _CURRENT.set((self, owner))
        try:
            with left_out():
                yield
        finally:
            _CURRENT.reset(token)


def current_manager() -> PluginManager:
    """The manager whose hook is being called; outside of one, a new manager over the installed plugins."""
    current = _CURRENT.get()
    return current[0] if current else PluginManager.from_config(EngineConfig())


def current_owner() -> str | None:
    """The distribution whose hook is being called."""
    current = _CURRENT.get()
    return current[1].distribution if current else None


def backend_missing(registry: Registry, name: str) -> BackendNotInstalled:
    """The error for ``--backend NAME`` when no plugin has the name."""
    names = sorted({record.name for record in registry.of_kind("backend", usable=False)})
    guess = did_you_mean(name, names)
    owner = FIRST_PARTY.get(("backend", name))
    example = guess.partition("'")[2].partition("'")[0] or (names[0] if names else "cpu")
    return BackendNotInstalled(
        f"no backend named {name!r}{guess}",
        reason=f"installed backends: {', '.join(names) or 'none'}",
        remedy=f"deepinfer --backend {example} ..., or pip install {owner or f'the plugin that provides {name!r}'}",
        details={"backend": name, "installed": names},
    )


def new_pluggy_manager() -> pluggy.PluginManager:
    """A pluggy manager that knows the hooks of this API version."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    return manager


def load_entry_point(entry: metadata.EntryPoint) -> Any:
    """Import what the entry point names, through stevedore over this one entry.

    stevedore's own discovery is left out: it would scan again, write a cache in the home folder, and lose the
    distribution (``spec/plugins.md`` 3). An exception of the import comes out as it is.
    """
    from stevedore.driver import DriverManager  # 15 ms, only when a plugin is loaded

    if TYPE_CHECKING:  # generic for type checkers; not at run time in every version we support
        manager = DriverManager[Any]
    else:
        manager = DriverManager

    class OneEntry(manager):
        def list_entry_points(self) -> list[metadata.EntryPoint]:
            return [entry]

    with left_out():
        return OneEntry(entry.group, entry.name).driver


def register_checked(
    manager: pluggy.PluginManager, plugin: object, key: str, record: PluginRecord | None = None
) -> None:
    """Register ``plugin`` as ``key`` and check its hook names and argument names.

    :param record: Whose plugin it is, for the message.
    :raises PluginError: naming the misspelt hook or argument and what exists.
    """
    known = {name for name in vars(hookspecs) if name.startswith("deepinfer_")}
    problems: list[str] = []
    for name in sorted(dir(plugin)):
        options = manager.parse_hookimpl_opts(plugin, name)
        if options is None:
            continue
        hook = options.get("specname") or name
        if hook not in known:
            if not options.get("optionalhook"):
                problems.append(f"unknown hook {hook!r}{did_you_mean(hook, known)}")
            continue
        allowed = list(inspect.signature(getattr(hookspecs, hook)).parameters)
        required, optional = pluggy.HookImpl(plugin, key, getattr(plugin, name), options).argnames, allowed
        for argument in required:
            if argument not in optional:
                guess = did_you_mean(argument, allowed)
                problems.append(f"{hook} has no argument {argument!r}{guess or '; it has ' + ', '.join(allowed)}")
    if problems:
        raise PluginError(
            f"{record.title if record else key}: {'; '.join(problems)}",
            reason=f"its hooks do not fit plugin API {API_VERSION[0]}.{API_VERSION[1]}",
            remedy=f"install a release of {record.distribution} that supports this API, or leave it out with "
            f"--no-plugin {record.name}"
            if record
            else "install a release of it that supports this API",
            details={"problems": problems},
        )
    manager.register(plugin, name=key)
    manager.check_pending()
