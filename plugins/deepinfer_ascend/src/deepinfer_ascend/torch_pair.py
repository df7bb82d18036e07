"""torch and torch-npu: whether both are there and belong together, without importing either."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution, version

from attrs import frozen

from deepinfer_ascend.info_files import release

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
"""Set to anything but 1, ``import torch`` does not import torch_npu by itself."""
USUAL = "2.13.0"
"""The release that calls were compared with."""


@frozen
class TorchPair:
    """Versions; empty: not installed. :ivar autoloads: whether ``import torch`` imports torch_npu here."""

    torch: str = ""
    torch_npu: str = ""
    autoloads: bool = False

    @property
    def problem(self) -> str:
        """Why the two cannot be used together; empty where they can: torch-npu X.Y.Z is made for torch X.Y.Z."""
        if not self.torch:
            return "torch is not installed"
        if not self.torch_npu:
            return "torch-npu is not installed"
        if release(self.torch)[:3] != release(self.torch_npu)[:3]:
            return f"torch-npu {self.torch_npu} is made for torch {self.wanted_torch}, and torch {self.torch} is here"
        return ""

    @property
    def wanted_torch(self) -> str:
        """The torch that this torch-npu is made for."""
        return ".".join(map(str, release(self.torch_npu)[:3]))

    @property
    def reason(self) -> str:
        """Why the problem is one."""
        apart = self.torch and self.torch_npu
        return "its compiled part is built against that release alone" if apart else ""

    @property
    def remedy(self) -> str:
        """Where both are here, one has to follow the other; what is lacking is installed beside the other."""
        if not self.torch_npu and not self.torch:
            return f"pip install torch=={USUAL} torch-npu=={USUAL}"
        if not self.torch:
            return f"pip install torch=={self.wanted_torch}"
        followed = f"pip install torch-npu=={'.'.join(map(str, release(self.torch)[:3]))}"
        return f"pip install torch=={self.wanted_torch}, or {followed}" if self.torch_npu else followed


def torch_pair(environ: Mapping[str, str]) -> TorchPair:
    """What is installed here."""
    wanted = environ.get(AUTOLOAD, "1") == "1"
    return TorchPair(_version("torch"), _version("torch-npu"), wanted and _asks_for_autoload())


def _asks_for_autoload() -> bool:
    try:
        return any(entry.group == "torch.backends" for entry in distribution("torch-npu").entry_points)
    except PackageNotFoundError:
        return False


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
