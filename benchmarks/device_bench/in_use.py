"""Which kernels of the cuda backend serve in a measurement: those whose tests have passed on a device, or all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def kernels_in_use(backend: str, *, every: bool) -> Iterator[list[str]]:
    """Gives the ops that plain ones do although they have a kernel. ``every``: none; each kernel serves."""
    if backend != "cuda":
        yield []
        return
    from deepinfer_cuda import unproven

    if every:
        with unproven.all_serve():
            yield []
    else:
        yield sorted(unproven.OPS)
