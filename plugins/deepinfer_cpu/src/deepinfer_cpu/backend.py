"""The backend object: op table, cache allocation, contract records as tensors."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from deepinfer_core.caches import unit_bytes
from deepinfer_core.types import CacheSpec, Capabilities
from deepinfer_cpu import formats
from deepinfer_cpu.caches import CpuCaches
from deepinfer_cpu.ops import (
    accept,
    attention,
    cache,
    compress,
    draft,
    engram,
    feed,
    gemm,
    indexer,
    meta,
    mhc,
    moe,
    norm,
    quant,
    sampling,
    transform,
    verify,
)
from deepinfer_cpu.rounding import constants
from deepinfer_cpu.scalars import HOST
from deepinfer_cpu.sync_guard import NoSync

DISTRIBUTION = "deepinfer-cpu"

OPS: Mapping[str, Callable[..., Any]] = {
    f"{group}.{op}": getattr(module, op)
    for group, module, names in (
        ("quant", quant, "cast_per_token dequantize prepare_weight"),
        ("norm", norm, "rms"),
        ("transform", transform, "fused rotary hadamard rope_table rope_rows"),
        ("cache", cache, "alloc view store load_segments"),
        ("compress", compress, "prefill decode state_copy"),
        (
            "meta",
            meta,
            (
                "window_index_prefill window_index_decode compressed_index index_cat logical_to_slot block_tables "
                "gather_rows decode_metadata"
            ),
        ),
        ("meta", feed, "feed_tokens correct_lengths"),
        ("meta", verify, "verify_lengths"),
        ("meta", draft, "draft_inputs"),
        ("attn", attention, "sparse_prefill plan sparse_decode"),
        ("index", indexer, "logits topk block_max restore"),
        ("gemm", gemm, "dense grouped einsum_heads"),
        ("moe", moe, "gate dispatch experts combine swiglu"),
        ("mhc", mhc, "expand prepare pre post head"),
        ("engram", engram, "prepare prepare_gate hash fetch gate"),
        ("sample", sampling, "mask logprobs draw"),
        ("sample", accept, "verify"),
    )
    for op in names.split()
}
ABSENT = ("attn.fused_prefill", "attn.fused_decode", "moe.mega", "sample.best", "sample.choose")
"""Optional ops of the protocol that this backend does not have: their attributes are None."""


def ops_on(device: torch.device) -> Mapping[str, Callable[..., Any]]:
    """The same ops for tensors of ``device``. An op works where its tensors are; here are those that get none."""
    if device.type == "cpu":
        return OPS

    def rope_table(
        max_pos: int, rotary_dim: int, *, theta: float, scaling: Mapping[str, float] | None = None
    ) -> Tensor:
        return transform.rope_table(max_pos, rotary_dim, theta=theta, scaling=scaling).to(device)

    def alloc(specs: Sequence[CacheSpec], units: Mapping[str, int]) -> CpuCaches:
        return CpuCaches(specs, units, device)

    rope_table.__doc__, alloc.__doc__ = transform.rope_table.__doc__, cache.alloc.__doc__
    return {**OPS, "transform.rope_table": rope_table, "cache.alloc": alloc}


def capabilities() -> Capabilities:
    """What the cpu backend can do (``spec/kernels.md`` 3.2)."""
    acts, weights = ("bf16", "f32", "e4m3"), ("bf16", "f32", "e4m3", "e2m1")
    return Capabilities(
        name="cpu",
        device_type="cpu",
        arch="cpu",
        memory_bytes=_memory_bytes(),
        dtypes=frozenset({"bf16", "f32"}),
        gemm_formats=frozenset(
            (a, w, "ue8m0" if w[0] == "e" or a[0] == "e" else "none") for a in acts for w in weights
        ),
        kv_formats=frozenset(formats.KV_FORMATS),
        index_formats=frozenset(formats.INDEX_FORMATS),
        sf_word="f32",
        features=frozenset(
            {"fp4_cache", "fp8_index_f32sf", "engram_host_storage", "batch_invariant", "deterministic_sampling"}
        ),
        determinism={"run_to_run": True, "batch_invariant": True, "cross_backend_sampler": True},
        notes="every product dequantises its operands to fp32",
    )


def _capabilities_on(device: torch.device) -> Capabilities:
    """Those of the plain ops elsewhere: its products may sum a row in another order in a larger batch."""
    here = capabilities()
    return attrs.evolve(
        here,
        device_type=device.type,
        memory_bytes=0,
        features=here.features - {"engram_host_storage", "batch_invariant"},
        determinism={**here.determinism, "batch_invariant": False},
    )


def _memory_bytes() -> int:
    """Physical memory of the host; 0 where the platform does not say."""
    import os

    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


class CpuBackend:
    """Implements ``deepinfer_core.interfaces.Backend`` with plain torch.

    On the host; :meth:`on` makes it work on another device of torch, for the backend of that device.
    """

    name = "cpu"

    def __init__(self, num_threads: int = 1, device: torch.device = HOST) -> None:
        self._threads_before = 0
        if device.type == "cpu":
            self._threads_before = torch.get_num_threads()
            torch.set_num_threads(num_threads)
        else:
            constants(device)  # tables are copied there now: no step waits for that
        self.device = device
        self.capabilities = capabilities() if device.type == "cpu" else _capabilities_on(device)
        self.ops: Mapping[str, Callable[..., Any]] = ops_on(device)
        self.plan: Mapping[str, str] = dict.fromkeys(OPS, DISTRIBUTION)
        groups: dict[str, dict[str, Callable[..., Any] | None]] = {}
        for op in ABSENT:
            group, _, name = op.partition(".")
            groups.setdefault(group, {})[name] = None
        for op, function in self.ops.items():
            group, _, name = op.partition(".")
            groups.setdefault(group, {})[name] = function
        for group, members in groups.items():
            setattr(self, group, SimpleNamespace(**members))

    def on(self, device: Any) -> CpuBackend:
        """The plain ops where another device of torch computes: whatever its backend has no kernel for.

        Tables and caches are made there, records are copied there, and no op waits for it, except where its contract
        says so. Close the new backend in place of this one.
        """
        self.close()
        return CpuBackend(device=torch.device(device))

    def unit_bytes(self, specs: Sequence[CacheSpec], pool: str) -> int:
        """Bytes of one unit of ``pool``, padding included; a block counts main and index together."""
        return unit_bytes(specs, pool)

    def alloc_caches(self, specs: Sequence[CacheSpec], units: Mapping[str, int]) -> CpuCaches:
        """Zeroed memory for ``units[pool]`` units of each pool. Raises CapacityError."""
        return CpuCaches(specs, units, self.device)

    def bind_inputs(self, record: Any) -> Any:
        """The same record with every array as a tensor that shares its memory (also inside dicts and lists); on
        another device than the host, as a copy."""
        bound = copy.copy(record)
        for field in attrs.fields(type(record)):
            value = getattr(record, field.name)
            if value is not None:
                setattr(bound, field.name, _bind(value, self.device))
        return bound

    def to_host(self, tensor: Any) -> Any:
        """The values of ``tensor`` as a numpy array (bf16 comes as float32)."""
        if not isinstance(tensor, Tensor):
            return np.asarray(tensor)
        tensor = tensor.detach()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()

    def no_sync(self) -> NoSync:
        """A context in which a host read of a tensor, outside the ops of this backend, raises HiddenSync."""
        return NoSync()

    def close(self) -> None:
        """Give the process its thread count back. Idempotent."""
        if self._threads_before:
            torch.set_num_threads(self._threads_before)
            self._threads_before = 0


def _bind(value: Any, device: torch.device) -> Any:
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value).to(device)
    if isinstance(value, dict):
        return {k: _bind(v, device) for k, v in value.items()}
    if isinstance(value, list):
        return [_bind(v, device) for v in value]
    return value


def create(device: str | None = None, config: Any = None) -> CpuBackend:
    """A ready backend, on ``config.num_threads`` threads of torch (one where that is not given).

    The products of a decode step are too small to share: on a busy machine a second thread mostly waits, and on two
    cores it has been a hundred times slower. ``close`` puts the process back to what it was.

    :raises ConfigError: ``device`` is something other than the host.
    """
    from deepinfer_core.errors import ConfigError

    if device not in (None, "cpu", "cpu:0"):
        raise ConfigError(
            f"device '{device}' does not belong to backend 'cpu'",
            reason="this backend computes on the host, its only device is 'cpu'",
            remedy="leave the device unset, or choose the backend of that device",
        )
    return CpuBackend(getattr(config, "num_threads", None) or 1)


def signature(op: str) -> str:
    """Parameters of ``op`` as text, the form used by ``schema/ops.toml``: names, order and defaults, no annotations."""
    parameters = [p.replace(annotation=inspect.Parameter.empty) for p in inspect.signature(OPS[op]).parameters.values()]
    return str(inspect.Signature(parameters))
