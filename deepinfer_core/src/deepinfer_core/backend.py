"""``build_backend``: make the object that implements :class:`deepinfer_core.interfaces.Backend` from a table of ops.

A backend gives its ops; those that it may leave out come from the ``cpu`` plugin, and the plan says so, op by op; a
required op does only where the backend names it. One error lists everything that is missing (``spec/plugins.md`` 7,
``spec/kernels.md`` 3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import attrs

from deepinfer_core.errors import BackendNotInstalled, UnsupportedOp
from deepinfer_core.settings import did_you_mean
from deepinfer_core.types import CacheSpec, Capabilities

if TYPE_CHECKING:
    from deepinfer_core.interfaces import Backend, Caches

_CPU = "cpu"
_METHODS = ("unit_bytes", "alloc_caches", "bind_inputs", "to_host")
_OPTIONAL = ("record_event", "wait", "no_sync", "prefetch", "capture", "copy_all", "host_like", "explain_fault")


class OpGroup(SimpleNamespace):
    """The ops of one group: ``backend.norm.rms``. An optional op that nobody provides is None."""


class BuiltBackend:
    """A backend with its op groups as attributes. Made by :func:`build_backend`."""

    def __init__(
        self,
        name: str,
        device: Any,
        capabilities: Capabilities,
        ops: Mapping[str, Callable[..., Any] | None],
        plan: Mapping[str, str],
        methods: Mapping[str, Callable[..., Any]],
        closers: Sequence[Callable[[], None]],
    ) -> None:
        self.name = name
        self.device = device
        self.capabilities = capabilities
        self.ops: Mapping[str, Any] = MappingProxyType({op: call for op, call in ops.items() if call is not None})
        self.plan: Mapping[str, str] = MappingProxyType(dict(plan))
        self._methods = dict(methods)
        self._closers = list(closers)
        for name in _OPTIONAL:  # absent unless given: whoever needs one asks whether it is there
            if name in methods:
                setattr(self, name, methods[name])
        groups: dict[str, dict[str, Any]] = {}
        for op, call in ops.items():
            group, _, member = op.partition(".")
            groups.setdefault(group, {})[member] = call
        for group, members in groups.items():
            setattr(self, group, OpGroup(**members))

    if TYPE_CHECKING:  # the groups are set one by one above

        def __getattr__(self, group: str) -> Any: ...

    def unit_bytes(self, specs: Sequence[CacheSpec], pool: str) -> int:
        """Bytes of one unit of ``pool``, padding included."""
        size: int = self._methods["unit_bytes"](specs, pool)
        return size

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> Caches:
        """Allocate zeroed memory. Raises CapacityError when the device has too little."""
        caches: Caches = self._methods["alloc_caches"](specs, units)
        return caches

    def bind_inputs(self, record: Any) -> Any:
        """The same record with its arrays on this device."""
        return self._methods["bind_inputs"](record)

    def to_host(self, tensor: Any) -> Any:
        """A numpy array with the values of ``tensor``."""
        return self._methods["to_host"](tensor)

    def close(self) -> None:
        """Give everything back. Idempotent."""
        while self._closers:
            self._closers.pop()()

    def __repr__(self) -> str:
        return f"<backend {self.name} on {self.device}, {len(self.ops)} ops>"


def build_backend(
    name: str,
    ops: Mapping[str, Callable[..., Any] | None],
    *,
    delegated: Collection[str] = (),
    device: Any = None,
    capabilities: Capabilities | None = None,
    unit_bytes: Callable[[Sequence[CacheSpec], str], int] | None = None,
    alloc_caches: Callable[[Sequence[CacheSpec], Mapping[str, int]], Caches] | None = None,
    bind_inputs: Callable[[Any], Any] | None = None,
    to_host: Callable[[Any], Any] | None = None,
    record_event: Callable[[], Any] | None = None,
    wait: Callable[[Any], object] | None = None,
    no_sync: Callable[[], AbstractContextManager[object]] | None = None,
    prefetch: Callable[[Iterable[Any]], None] | None = None,
    capture: Callable[[Callable[[], object]], Callable[[], None]] | None = None,
    copy_all: Callable[[Sequence[Any], Sequence[Any]], object] | None = None,
    host_like: Callable[[Any], Any] | None = None,
    explain_fault: Callable[[str, Exception], Exception | None] | None = None,
    close: Callable[[], None] | None = None,
    provider: str | None = None,
    providers: Mapping[str, str] | None = None,
    defaults: Backend | None = None,
) -> BuiltBackend:
    """Make a backend from its ops.

    :param name: The backend's name.
    :param ops: Op id -> callable; None says that an optional op is not there.
    :param delegated: Required ops that this backend leaves to ``defaults``, named one by one; the plan says so.
    :param device: The device; None runs on that of ``cpu``, and then the functions below default to those of ``cpu``.
    :param capabilities: What it can do; None: those of ``cpu`` under this name.
    :param unit_bytes, alloc_caches, bind_inputs, to_host: The functions of the ``Backend`` protocol. A backend with a
        device of its own must give the last three.
    :param record_event, wait, no_sync, prefetch, capture, copy_all, host_like, explain_fault: Methods that a backend
        may leave out (``interfaces.Backend``).
    :param close: Called once by ``Backend.close``.
    :param provider: Distribution named in the plan for these ops; None: the one whose hook is being called.
    :param providers: Op id -> who is named in the plan instead, for given ops that are another distribution's.
    :param defaults: Backend that fills what is left out; None: ``cpu``, through the plugin registry, if anything is.
    :raises UnsupportedOp: listing every unknown op id, and every required op or function that is missing.
    """
    table = op_table()
    given = {op: call for op, call in ops.items() if call is not None}
    functions: dict[str, Callable[..., Any]] = {
        key: function
        for key, function in zip(_METHODS, (unit_bytes, alloc_caches, bind_inputs, to_host), strict=True)
        if function is not None
    }
    own_functions = _METHODS[1:] if device is not None else ()
    wanted = [op for op, required in table.items() if op not in ops and (not required or op in delegated)]
    closers = [close] if close is not None else []
    problems = [f"unknown op {op!r}{did_you_mean(op, table)}" for op in sorted(ops) if table and op not in table]
    problems += [f"unknown op {op!r}{did_you_mean(op, table)}" for op in sorted(delegated) if op not in table]
    problems += [f"op {op} is given and delegated" for op in sorted(delegated) if op in ops]
    problems += [f"{op} is not callable" for op, call in sorted(given.items()) if not callable(call)]
    problems += [f"function {key} (a device needs its own)" for key in own_functions if key not in functions]
    incomplete = bool(wanted) or len(functions) < len(_METHODS) or capabilities is None
    source = f"the {_CPU} plugin"
    if incomplete and defaults is None and name != _CPU:
        try:
            defaults = cpu_backend()
        except BackendNotInstalled as exc:
            source = f"no {_CPU} plugin here ({exc.reason})"
        else:
            closers.append(defaults.close)
    who = provider or _provider(name)
    complete: dict[str, Callable[..., Any] | None] = dict(ops)
    plan = {op: (providers or {}).get(op, who) for op in given}
    problems += [f"op {op}" for op, required in table.items() if required and op not in given and op not in wanted]
    for op in wanted:
        filled = defaults.ops.get(op) if defaults is not None else None
        complete[op] = filled
        if filled is not None and defaults is not None:
            plan[op] = defaults.plan.get(op, defaults.name)
        elif op in delegated:
            problems.append(f"op {op}")
    for key in _METHODS:
        if key not in functions and key not in own_functions:
            if defaults is None:
                problems.append(f"function {key}")
            else:
                functions[key] = getattr(defaults, key)
    optional: tuple[Callable[..., Any] | None, ...] = (
        record_event,
        wait,
        no_sync,
        prefetch,
        capture,
        copy_all,
        host_like,
        explain_fault,
    )
    functions |= {key: function for key, function in zip(_OPTIONAL, optional, strict=True) if function is not None}
    if device is None and defaults is not None and no_sync is None and hasattr(defaults, "no_sync"):
        functions["no_sync"] = defaults.no_sync
    if (record_event is None) != (wait is None):
        problems.append("function wait" if wait is None else "function record_event")
    if capabilities is None:
        if defaults is None:
            problems.append("capabilities")
        else:
            capabilities = attrs.evolve(defaults.capabilities, name=name)
    if problems or capabilities is None:
        raise UnsupportedOp(
            f"backend {name!r} is incomplete: {', '.join(problems)}",
            reason=f"it gives {len(given)} ops; defaults of optional ones come from {source}",
            remedy="implement what is listed",
            details={"backend": name, "missing": problems},
        )
    chosen_device = defaults.device if device is None and defaults is not None else device
    return BuiltBackend(name, chosen_device, capabilities, complete, plan, functions, closers)


def op_table() -> Mapping[str, bool]:
    """Op id -> whether a backend must have it (its own, or the default), from ``contracts/schema/ops.toml``."""
    from deepinfer_contracts import OPS  # numpy comes with it, and no one builds a backend without numpy

    return {op: record.required for op, record in OPS.items()}


def cpu_backend(device: str | None = None, *, on: Any = None) -> Backend:
    """A new ``cpu`` backend, through the plugin registry: for a backend that wraps its ops. Whoever asks closes it.

    To be called in ``deepinfer_backend_create``, whose settings it is made with.

    :param device: As that hook gets it; another one than the host is refused (ConfigError).
    :param on: A device of torch, in place of the host: its plain ops, tables and caches are made there. So a backend
        of that device may leave any op to it: ``build_backend(..., defaults=cpu_backend(on=device))``.
    :raises BackendNotInstalled: ``deepinfer-cpu`` is not installed.
    """
    from deepinfer_core.plugins.hooks import Hooks  # imports this module
    from deepinfer_core.plugins.manager import current_manager

    manager = current_manager()
    made: Any = Hooks(manager).backend_create(manager.require("backend", _CPU), device, manager.config)
    chosen: Backend = made if on is None else made.on(on)
    return chosen


def _provider(name: str) -> str:
    from deepinfer_core.plugins.manager import current_owner

    return current_owner() or name
