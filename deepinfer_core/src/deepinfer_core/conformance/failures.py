"""What a test of the kit raises, and the checks that raise it. None is an ``assert``: ``python -O`` changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


class ConformanceFailure(AssertionError):
    """The plugin under test does not do what its kind has to.

    :ivar what: What is wrong, in one line.
    :ivar facts: Values of the failure by name, in the order to print: op, case, worst, got, expected, limit, seed.
    """

    def __init__(self, what: str, **facts: object) -> None:
        super().__init__(what)
        self.what = what
        self.facts: dict[str, object] = {key: value for key, value in facts.items() if value is not None}

    def __str__(self) -> str:
        return "\n".join([self.what, *(f"  {key}: {value}" for key, value in self.facts.items())])


def fail(what: str, **facts: object) -> NoReturn:
    """Fail the test. ``facts`` name the values of the failure: ``op``, ``case``, ``got``, ``expected``, ..."""
    __tracebackhide__ = True
    raise ConformanceFailure(what, **facts)


def require(condition: object, what: str, **facts: object) -> None:
    """Fail the test unless ``condition`` holds."""
    __tracebackhide__ = True
    if not condition:
        raise ConformanceFailure(what, **facts)


def require_equal(got: object, expected: object, what: str, **facts: object) -> None:
    """Fail the test unless ``got == expected`` (plain values; tensors go through ``tolerance``)."""
    __tracebackhide__ = True
    if got != expected:
        raise ConformanceFailure(what, **facts, got=repr(got), expected=repr(expected))


@contextmanager
def require_raises(kind: type[BaseException], what: str, **facts: object) -> Iterator[list[BaseException]]:
    """Fail the test unless the block raises a ``kind``. Gives a list that then holds the exception.

    Another exception is a failure too: it names both.
    """
    __tracebackhide__ = True
    raised: list[BaseException] = []
    try:
        yield raised
    except kind as exc:
        raised.append(exc)
        return
    except Exception as exc:
        raise ConformanceFailure(
            what,
            **facts,
            got=f"{type(exc).__name__}: {str(exc).splitlines()[0] if str(exc) else ''}",
            expected=f"a {kind.__name__}",
        ) from exc
    raise ConformanceFailure(what, **facts, got="no exception", expected=f"a {kind.__name__}")


@contextmanager
def require_no_error(what: str, **facts: object) -> Iterator[None]:
    """Turn whatever the block raises into a failure of the test: for what has to work and is no typed error."""
    __tracebackhide__ = True
    try:
        yield
    except ConformanceFailure:
        raise
    except Exception as exc:
        text = str(exc).splitlines()[0] if str(exc) else ""
        raise ConformanceFailure(what, **facts, got=f"{type(exc).__name__}: {text}", expected="no exception") from exc
