"""The NPU driver by its files: where it is, its version, and whether it offers what a CANN asks for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from attrs import frozen

from deepinfer_ascend.info_files import read_info, release

_REQUIRED, _OFFERED = "required_driver_", "_version"
_PARTS = ("runtime", "compiler", "opp", "fwkacllib", "acllib")
"""Folders of a CANN whose ``version.info`` may name what it needs of the driver."""


@frozen
class Driver:
    """:ivar folder: of its installation. :ivar version: ``25.5.2``; empty: there is none.
    :ivar offers: interface -> version, such as ``ascendhal`` -> ``7.35.23``."""

    folder: Path
    version: str
    offers: Mapping[str, str]


def driver(root: Path) -> Driver:
    """What is installed below ``root``: at the place that ``/etc/ascend_install.info`` names, or the usual one."""
    place = read_info(root / "etc/ascend_install.info").get("driver_install_path_param", "/usr/local/Ascend")
    folder = root / place.lstrip("/") / "driver"
    info = read_info(folder / "version.info")
    offers = {key.removesuffix(_OFFERED): value for key, value in info.items() if key.endswith(_OFFERED)}
    return Driver(folder, info.get("package_version") or info.get("version", ""), offers)


def too_old_for(found: Driver, cann: Path) -> str:
    """What the CANN in ``cann`` needs and the driver does not offer, as a text; empty where it fits.

    Compared is what both state: ``required_driver_X_version`` of the one, ``X_version`` of the other.
    """
    lacking = []
    for part in _PARTS:
        for key, wanted in read_info(cann / part / "version.info").items():
            if not (key.startswith(_REQUIRED) and key.endswith(_OFFERED)):
                continue
            interface = key.removeprefix(_REQUIRED).removesuffix(_OFFERED)
            offered = found.offers.get(interface, "")
            if release(offered) < release(wanted):
                lacking.append(f"{interface} {wanted} is needed, {offered or 'none'} is offered")
    return "; ".join(dict.fromkeys(lacking))
