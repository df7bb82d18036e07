"""``torch.npu``, ``torch_npu`` and the vendor's libraries on the fake device: they compute with their equivalents.

Imported in a process of its own: a device of torch has one name for the life of a process.
"""

import sys
import types
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from deepinfer_ascend import emulation
from deepinfer_ascend.fractal import Fractals
from deepinfer_ascend.vendor.table import TABLE
from deepinfer_core.caches import CacheView

calls = []
"""Vendor symbols that were called, in order."""
FORMATS = {528: ("v41", 512), 288: ("v41_fp4", 512), 68: ("index_fp4", 128)}


copied = []
"""Streams other than the compute stream that were entered, in order."""


class Stream(torch.Stream):
    def wait_event(self, event):
        assert event.stream is not None, "nothing was recorded"


class Event:
    stream = None

    def record(self, stream):
        self.stream = stream

    def query(self):
        return False  # not yet: whoever needs it has to wait

    def synchronize(self):
        assert self.stream is not None, "nothing was recorded"


@contextmanager
def entered(stream):
    copied.append(stream)
    yield


def start(device):
    """Register the device, and put the fakes where imports find them."""
    device.start()
    torch.utils.rename_privateuse1_backend("npu")
    npu, compute = types.ModuleType("torch.npu"), Stream(device="npu")
    npu.__dict__.update(
        device_count=lambda: 2, is_available=lambda: True, is_initialized=lambda: True, _is_in_bad_fork=lambda: False,
        current_device=device.current_device, set_device=lambda at: device.set_device(torch.device(at).index or 0),
        synchronize=lambda at=None: None, manual_seed_all=lambda seed: None, current_stream=lambda at=None: compute,
        Stream=lambda at=None: Stream(device="npu"), stream=entered,
        get_device_name=lambda at=None: "Ascend950PR_9599", Event=Event,
        graph=lambda g, pool=None, capture_error_mode="global": nullcontext(), config=types.SimpleNamespace(),
        set_compile_mode=lambda jit_compile=False: None,
        get_device_properties=lambda at=None: types.SimpleNamespace(total_memory=1 << 37),
        get_amp_supported_dtype=lambda: [torch.bfloat16], graph_pool_handle=lambda: "pool",
    )  # fmt: skip
    torch._register_device_module("npu", npu)
    torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
    for name, symbol in TABLE.items():
        package, _, rest = symbol.module.partition(".")
        for path in filter(None, (package, rest and symbol.module)):
            sys.modules.setdefault(path, types.ModuleType(path))
        setattr(sys.modules[symbol.module], symbol.attribute, library(name, device))


def library(name, device):
    """The vendor's function ``name``: takes tensors of the device alone, and shares its memory with the equivalent."""

    def to_host(x):
        if isinstance(x, Tensor):
            assert x.device.type == "npu", f"{name} got a tensor of {x.device}"
            return device.on_host(x)
        if isinstance(x, Fractals):
            return Fractals(to_host(x.data), x.shape, x.dtype)
        return tuple(map(to_host, x)) if isinstance(x, tuple) else x

    def to_device(x):
        if isinstance(x, Tensor):
            return x.to("npu")
        if isinstance(x, Fractals):
            return Fractals(x.data.to("npu"), x.shape, x.dtype)
        return tuple(map(to_device, x)) if isinstance(x, tuple) else x

    def cache(x):
        """The view that a tensor ``[blocks, page, 1, bytes]`` of a cache is; its format by the last dimension."""
        if not isinstance(x, Tensor) or x.dim() != 4 or x.shape[2] != 1 or x.dtype != torch.uint8:
            return x
        form, width = FORMATS[x.shape[3]]
        held = x.flatten(1) if form == "index_fp4" else x.squeeze(2)
        return CacheView(held, form, x.shape[1], x.stride(0), width)

    def call(*args, **kwargs):
        calls.append(name)
        given = [cache(to_host(x)) for x in args]
        options = {key: cache(to_host(x)) for key, x in kwargs.items()}
        return to_device(emulation._found(name)(*given, **options))

    return call
