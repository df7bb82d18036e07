"""Random weights of the right names, shapes and formats, made where they are wanted when they are asked for.

For measurements of any configuration without its checkpoint, and of one that no disk holds: values are drawn so that
activations keep their size from layer to layer, and say nothing. The same seed and device give the same weights.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from deepinfer_v41.config import V41Config
from deepinfer_v41.weights.table import BLOCK, Role, TensorSpec, tensor_table

_E4M3_SIZE = 16.0
"""Standard deviation of the codes of an FP8 matrix: far from the limit 448, and from the subnormals."""
_E2M1_SIZE = 2.926
"""Root of the mean square of the sixteen values of E2M1, all equally likely."""
_E8M0_ONE = 127
_GATE_BIAS = 0.05
_MOST_ROWS = 1 << 22
"""A table with more rows (Engram's) is one random row repeated: drawing it would take longer than all the rest."""


class DummyTensors(Mapping[str, Tensor]):
    """Name -> tensor as stored; a new one each time it is asked for, so that nobody holds them all.

    :param draft: Include the draft stages.
    """

    def __init__(self, config: V41Config, *, device: torch.device | str, draft: bool, seed: int = 0) -> None:
        table = tensor_table(config)
        self._table = {name: spec for name, spec in table.items() if draft or spec.stage is None}
        self._device, self._seed = torch.device(device), seed

    def __getitem__(self, name: str) -> Tensor:
        spec = self._table[name]
        draw = torch.Generator(self._device).manual_seed(zlib.crc32(f"{self._seed} {name}".encode()))
        if spec.role is Role.PLAIN or spec.role is Role.UNQUANTIZED:
            return self._plain(name, spec, draw)
        if spec.role is Role.MXFP4:
            return torch.randint(-128, 128, spec.shape, dtype=torch.int8, device=self._device, generator=draw)
        if spec.role.is_scale:
            exponent = round(math.log2(_code_size(self._table[name.removesuffix("scale") + "weight"])))
            code = _E8M0_ONE - exponent - _bits(spec.logical_shape[-1])
            return torch.full(spec.shape, code, dtype=torch.uint8, device=self._device).view(torch.float8_e8m0fnu)
        codes = torch.randn(_drawn(spec.shape), device=self._device, generator=draw) * _E4M3_SIZE
        return codes.clamp_(-448, 448).to(torch.float8_e4m3fn).expand(spec.shape).contiguous()

    def _plain(self, name: str, spec: TensorSpec, draw: torch.Generator) -> Tensor:
        dtype = torch.float32 if spec.dtype == "F32" else torch.bfloat16
        values = torch.randn(spec.shape, device=self._device, generator=draw)
        if name.endswith(("gate.bias", "gate.bias_vl", "attn_sink")):
            values *= _GATE_BIAS
        elif "norm" in name or name.endswith(("q_weight", "k_weight", "_scale")):
            values = values.mul_(_GATE_BIAS).add_(1.0)
        elif len(spec.shape) == 2 and not name.startswith("embed"):
            values *= spec.shape[-1] ** -0.5
        return values.to(dtype)

    def __contains__(self, name: object) -> bool:
        return name in self._table

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(spec.nbytes for spec in self._table.values())


def _code_size(weight: TensorSpec) -> float:
    return _E2M1_SIZE if weight.role is Role.MXFP4 else _E4M3_SIZE


def _bits(width: int) -> int:
    """So many halvings bring ``width`` products of size 1 back to a sum of size 1."""
    return round(math.log2(max(width, BLOCK)) / 2)


def _drawn(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (1, *shape[1:]) if shape[0] > _MOST_ROWS else shape
