"""Which Ascend devices there are and whether they can be used, without a device context.

::

    device files -> permission -> driver -> visible devices -> architecture -> CANN -> its environment -> driver and
    CANN -> libraries -> torch and torch-npu
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from attrs import evolve

from deepinfer_ascend import facts
from deepinfer_ascend.arches import SUPPORTED, arch_of
from deepinfer_ascend.machine import Machine
from deepinfer_core.types import HostInfo, ProbeReport

SCORE = 100
"""Above what a backend without a score of its own has."""
_ELSE = "--emulate runs the plugin's code on the processor; or choose --backend cpu"
_HOST = "run on an Ascend 950 host with CANN >= 9.2 and the torch-npu of your torch"


def probe(host: HostInfo, root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> ProbeReport:
    """What is found below ``root``."""
    if not host.os.startswith("linux"):
        reason = f"Ascend devices are used on linux, this is {host.os}"
        return ProbeReport(present=False, usable=False, reasons=(reason,), remedy="choose --backend cpu")
    machine = Machine.read(root, environ)
    problems = [check for check in machine.checks() if check.status == "problem"]
    if not facts.nodes(root):
        # A driver without device files is mostly a container that was given no device: there is none for it.
        remedy = problems[0].remedy if machine.driver.version else _HOST
        reasons = tuple(check.detail for check in problems)
        return ProbeReport(present=False, usable=False, reasons=reasons, remedy=f"{remedy}; {_ELSE}")
    report = _found(machine)
    if problems:
        first = problems[0]
        reason = f"{first.detail}: {first.reason}" if first.reason else first.detail
        return evolve(report, reasons=(reason,), remedy=f"{first.remedy}; {_ELSE}")
    return evolve(report, usable=True, score=SCORE)


def _found(machine: Machine) -> ProbeReport:
    """The devices that this process may use, as a report that says nothing of their use."""
    arches = [arch_of(device.name) for device in machine.visible]
    pairs = zip(machine.visible, arches, strict=True)
    return ProbeReport(
        present=True,
        usable=False,
        devices=tuple(f"{device.name} ({arch or 'unknown'})" for device, arch in pairs),
        arch=next((arch for arch in arches if arch in SUPPORTED), arches[0] if arches else ""),
        driver=f"NPU driver {machine.driver.version or 'unknown'}",
    )
