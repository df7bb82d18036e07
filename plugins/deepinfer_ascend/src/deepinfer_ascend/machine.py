"""Everything that is looked at of one machine, read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from deepinfer_ascend import dcmi, facts
from deepinfer_ascend.cann import Cann, cann
from deepinfer_ascend.container import is_container
from deepinfer_ascend.driver import Driver, driver
from deepinfer_ascend.torch_pair import TorchPair, torch_pair
from deepinfer_ascend.visible import visible
from deepinfer_core.types import DoctorCheck


@frozen
class Machine:
    """:ivar devices: all that the driver tells. :ivar error: why it tells none; empty where it was asked in vain."""

    root: Path
    environ: Mapping[str, str]
    driver: Driver
    cann: Cann
    pair: TorchPair
    devices: tuple[dcmi.Device, ...] = ()
    error: str = ""

    @classmethod
    def read(cls, root: Path, environ: Mapping[str, str]) -> Machine:
        """The one below ``root``. Loads the driver's library only where there are device files."""
        found, error = driver(root), ""
        devices: tuple[dcmi.Device, ...] = ()
        if facts.nodes(root):
            try:
                devices = dcmi.read(found.folder)
            except dcmi.DcmiError as exc:
                error = str(exc)
        return cls(root, environ, found, cann(root, environ), torch_pair(environ), devices, error)

    @property
    def in_container(self) -> bool:
        return is_container(self.root, self.environ)

    @property
    def visible(self) -> list[dcmi.Device]:
        return visible(self.devices, self.environ)[0]

    def checks(self) -> Iterator[DoctorCheck]:
        """One line for each thing, each of them only where what it rests on is there."""
        yield facts.node_check(self.root, self.driver, self.in_container)
        if facts.nodes(self.root):
            yield facts.permission_check(self.root)
            yield facts.driver_check(self.driver, self.devices, self.error, self.in_container)
        if self.devices:
            yield facts.visibility_check(self.devices, self.environ)
            yield facts.arch_check(self.visible or self.devices)
        yield facts.cann_check(self.cann)
        if self.cann.folder is not None:
            yield facts.environment_check(self.cann)
            if self.driver.version:
                yield facts.fit_check(self.driver, self.cann)
            yield facts.library_check(self.root, self.environ, self.cann)
        yield facts.pair_check(self.pair)
