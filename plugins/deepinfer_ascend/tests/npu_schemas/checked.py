"""``torch.npu`` with every use of it checked against the real one: what is taken from it exists, what is called is
called as its signature has it. The answers are made up, for nothing is computed."""

import inspect
import types

ANSWERS = {
    "device_count": 2,
    "is_available": True,
    "current_device": 0,
    "graph_pool_handle": "pool",
    "get_device_name": "Ascend950PR_9599",
}
PROPERTIES = {"total_memory": 1 << 37}
"""Of a device, each of which the real record must have."""


def bound(real, name, arguments, options):
    """``arguments`` as the callable ``real`` takes them; TypeError with its name where it does not."""
    try:
        inspect.signature(real).bind(*arguments, **options)
    except TypeError as exc:
        raise TypeError(f"{name}: {exc}") from exc


class Instance:
    """One of a class of ``torch.npu``: methods answer None, ``query`` that it is not over."""

    def __init__(self, owner, real, name):
        self.__dict__.update(_owner=owner, _real=real, _name=name)

    def __getattr__(self, method):
        name = f"{self._name}.{method}"
        real = getattr(self._real, method)
        self._owner.used.add(name)

        def call(*arguments, **options):
            bound(real, name, (self, *arguments), options)
            return False if method == "query" else None

        return call

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


class Checked:
    """:param real: ``torch.npu``. :ivar used: names that were taken from it."""

    def __init__(self, real):
        self.real, self.used = real, set()

    def __getattr__(self, name):
        real = getattr(self.real, name)
        self.used.add(name)
        if not callable(real):
            return real

        def call(*arguments, **options):
            bound(real, name, arguments, options)
            if name == "current_stream":
                return Instance(self, self.real.Stream, "Stream")
            if inspect.isclass(real) or name == "stream":
                return Instance(self, real, name)
            if name == "get_device_properties":
                return types.SimpleNamespace(**PROPERTIES)
            return ANSWERS.get(name)

        return call
