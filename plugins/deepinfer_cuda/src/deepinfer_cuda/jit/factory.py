"""``@kernel``: a function that makes a TileLang program becomes one that gives the compiled kernel."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepinfer_cuda.arches import compiler_arch
from deepinfer_cuda.jit import compiling
from deepinfer_cuda.jit.target import current_arch

Params = Mapping[str, Any]


class Factory:
    """A kernel of many sizes. ``factory(**params)`` gives what launches one of them.

    :ivar cases: the parameter sets of warm-up and of the lowering tests.
    :ivar pass_configs: options of TileLang's passes for this kernel.
    """

    def __init__(self, make: Callable[..., Any], cases: Sequence[Params], pass_configs: Params | None) -> None:
        functools.update_wrapper(self, make)
        self.make = make
        self.cases = tuple(dict(case) for case in cases)
        self.pass_configs = dict(pass_configs or {})
        self.name = make.__name__
        self.area = _area_of(make.__module__)
        self._parameters = inspect.signature(make).parameters
        self._ready: dict[tuple[tuple[str, Any], ...], Callable[..., Any]] = {}
        self._lock = threading.Lock()
        _check_declaration(self)

    def __call__(self, **params: Any) -> Callable[..., None]:
        """What launches the kernel on the current stream: called with its tensors and scalars in order.

        Compiled, or loaded from disk, at the first call with these parameters; later calls are one look-up.

        :raises TypeError: a parameter that the factory does not have, or one that is missing.
        :raises BackendUnavailable: no compiler, and the kernel is not in the cache.
        :raises EngineError: the kernel does not compile.
        """
        key = tuple(params.items())
        ready = self._ready.get(key)
        return ready if ready is not None else self._prepare(key, params)

    def _prepare(self, key: tuple[tuple[str, Any], ...], params: Params) -> Callable[..., None]:
        with self._lock:
            ready = self._ready.get(key)
            if ready is None:
                ready = self._ready[key] = compiling.load(self.label(params), self._program(params), **self._how())
        return ready

    def lower(self, arch: str, **params: Any) -> str:
        """The CUDA source for ``arch`` (``sm_90a``, ``sm_100a``). Needs neither a GPU nor a CUDA compiler."""
        return compiling.lower(self._program(params, arch), compiler_arch(arch), self.pass_configs)

    def build(self, arch: str, **params: Any) -> None:
        """Compile for ``arch`` into the cache on disk, unless it is there. Needs nvcc and no GPU."""
        compiling.build(self.label(params), self._program(params, arch), compiler_arch(arch), self.pass_configs)

    def label(self, params: Params) -> str:
        """``rms_rows(width=5120)``, for messages and progress."""
        return f"{self.name}({', '.join(f'{key}={value}' for key, value in params.items())})"

    def _how(self) -> dict[str, Any]:
        return {"arch": current_arch(), "pass_configs": self.pass_configs}

    def _program(self, params: Params, arch: str | None = None) -> Any:
        return compiling.in_target(arch or current_arch(), lambda: self.make(**params))

    def __repr__(self) -> str:
        return f"<kernel {self.area}.{self.name}, {len(self.cases)} cases>"


def kernel(*, cases: Sequence[Params], pass_configs: Params | None = None) -> Callable[[Callable[..., Any]], Factory]:
    """Make a :class:`Factory` of a function with keyword parameters that returns a ``T.prim_func``.

    :param cases: Parameter sets that warm-up compiles and the lowering tests lower for every architecture: the sizes of
        the shipped checkpoint and the real ones. At least one.
    :param pass_configs: ``{tilelang.PassConfigKey...: value}``, for this kernel alone.
    """

    def decorate(make: Callable[..., Any]) -> Factory:
        return Factory(make, cases, pass_configs)

    return decorate


def _area_of(module: str) -> str:
    """``attention`` of ``deepinfer_cuda.tl.attention.decode``."""
    _, found, rest = module.partition(".tl.")
    return (rest if found else module).split(".")[0]


def _check_declaration(factory: Factory) -> None:
    """A wrong declaration is a fault of the programmer, told where the module is imported."""
    for parameter in factory._parameters.values():
        if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            raise TypeError(f"{factory.name}: parameter {parameter.name} must be keyword-only")
    if not factory.cases:
        raise TypeError(f"{factory.name}: give at least one case")
    signature = inspect.signature(factory.make)
    for case in factory.cases:
        try:
            signature.bind(**case)
        except TypeError as exc:
            raise TypeError(f"{factory.name}: case {case}: {exc}") from None
