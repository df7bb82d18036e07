"""Put the kernels of the libraries that the user names in place of our own, for the arguments that they take.

``DEEPINFER_CUDA_VENDORS=gemm,deepselect`` names them; none is taken unasked. One that is named and cannot be used is an
error, and the execution plan names its distribution beside the op.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from deepinfer_core.errors import ConfigError, UnsupportedArch
from deepinfer_core.settings import did_you_mean
from deepinfer_cuda.vendor.loading import installed, symbol

VARIABLE = "DEEPINFER_CUDA_VENDORS"
Op = Callable[..., Any]


def chosen(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Names in ``DEEPINFER_CUDA_VENDORS``, each once. Raises ConfigError for one that is not in the table."""
    from deepinfer_cuda.vendor.table import VENDORS

    names = tuple(dict.fromkeys(word.strip() for word in environ.get(VARIABLE, "").split(",") if word.strip()))
    for name in names:
        if name not in VENDORS:
            raise ConfigError(
                f"{VARIABLE} names {name!r}, which is no vendor library{did_you_mean(name, VENDORS)}",
                reason=f"there are {', '.join(VENDORS)}",
                remedy="correct the name, or unset the variable",
            )
    return names


def serve(ops: Mapping[str, Op], names: Sequence[str], arch: str) -> tuple[dict[str, Op], dict[str, str]]:
    """``ops`` with those that the libraries ``names`` serve on ``arch``, and op id -> distribution of each of those.

    :raises VendorImportError: a library or a symbol of it is not there.
    :raises UnsupportedArch: a library has no kernels for ``arch``.
    """
    from deepinfer_cuda.vendor.table import TABLE, VENDORS

    served, providers = dict(ops), {}
    for name in names:
        vendor = VENDORS[name]
        rows = [row for row in TABLE if row.vendor == name]
        usable = [row for row in rows if arch in row.arches]
        if not usable:
            known = sorted({known for row in rows for known in row.arches})
            raise UnsupportedArch(
                f"vendor library {name!r} has no kernels for {arch}",
                reason=f"it has kernels for {', '.join(known)}",
                remedy=f"leave {name!r} out of {VARIABLE}",
                details={"backend": "cuda", "vendor": name, "arch": arch},
            )
        for row in usable:
            symbols = [symbol(vendor, module, attribute) for module, attribute in row.symbols]
            if row.fits is not None and row.op in ops:
                served[row.op] = _either(served[row.op], functools.partial(row.call, *symbols), row.fits)
                providers[row.op] = installed(vendor).split()[0]
    return served, providers


def _either(own: Op, theirs: Op, fits: Callable[..., bool]) -> Op:
    @functools.wraps(own)
    def op(*args: Any, **kwargs: Any) -> Any:
        return theirs(*args, **kwargs) if fits(*args, **kwargs) else own(*args, **kwargs)

    return op
