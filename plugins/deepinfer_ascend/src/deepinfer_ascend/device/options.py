"""Options of torch-npu that are not variables (``spec/kernels.md`` 7.1).

torch-npu tells of none of them what it was before, so a backend that is closed leaves them as they are.
"""

from __future__ import annotations

from typing import Any


def apply_options(module: Any) -> None:
    """:param module: ``torch.npu``.

    Tensors may have formats of the chip: without that a cast to FRACTAL_NZ gives the tensor as it was. And no operator
    is compiled when it is first called: those of the release are taken.
    """
    module.config.allow_internal_format = True
    module.set_compile_mode(jit_compile=False)
