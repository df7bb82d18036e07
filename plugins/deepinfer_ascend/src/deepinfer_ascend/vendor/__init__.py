"""Symbols of vendor libraries: torch-npu, the Ascend builds of DeepGEMM, FlashMLA, DeepSelect, and tile-kernels.

``table.py`` has one row for each bound symbol; ``loading.py`` looks it up in the library that is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from deepinfer_ascend.vendor.loading import resolve
from deepinfer_ascend.vendor.table import TABLE, UNBOUND
from deepinfer_core.errors import VendorImportError


def symbol(name: str, of: Any) -> Callable[..., Any]:
    """What to call for the symbol ``name`` of the table, by where the tensor ``of`` is: on an NPU the library's own,
    on the host its equivalent of ``emulation/``.

    :raises VendorImportError: the library, or the symbol in it, is not there.
    :raises VendorImportError: of a symbol that is not bound, with the reason of the table.
    :raises ShapeContractError: a host tensor where nothing is emulated: it belongs on the device.
    """
    if name not in TABLE:
        raise VendorImportError(
            f"{name} is not bound",
            reason=UNBOUND.get(name, "vendor/table.py does not know it"),
            remedy="this is a fault of backend ascend, please report it",
            details={"backend": "ascend", "symbol": name},
        )
    if of.device.type == "cpu":
        from deepinfer_ascend.emulation import equivalent

        return equivalent(name)
    return resolve(TABLE[name])
