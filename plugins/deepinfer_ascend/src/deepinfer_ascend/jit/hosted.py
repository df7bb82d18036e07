"""Lowered AscendC, compiled by g++ against a shim of the device's headers, and executed on the processor.

It says whether the arithmetic, the index maths and the layouts of a lowered kernel are right, that its buffers fit,
that threads meet at barriers and waits have notifies. It says nothing of ``bisheng``, of hazards of pipes, of time.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from deepinfer_ascend.contracts import misfit
from deepinfer_ascend.jit.compiling import compiled
from deepinfer_ascend.jit.kept import cache_folder, publish
from deepinfer_ascend.jit.lowering import Lowered
from deepinfer_core.errors import BackendUnavailable, EngineError

SHIM = Path(__file__).parents[1] / "emulation" / "shim"
FLAGS = (
    "-std=gnu++20", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-shared", "-fPIC", "-w",
)  # fmt: skip
"""No contraction: what is a product and a sum in the source stays one. The generated source casts pointers freely. A
fortified longjmp, the default of some compilers, refuses to go from one stack to another."""
FAULTS = {
    1: "it wrote behind the on-chip memory of a core",
    2: "some threads wait at a barrier that others never reach",
    3: "a copy begins at an address that is no multiple of 32 bytes",
    4: "it waits for an event that nothing before it in the source sets",
    5: "a region has more threads than a core",
}
_MEMORIES = {"ubuf": "UB", "cbuf": "L1", "cc": "L0C", "ca": "L0A", "cb": "L0B"}
_ADDRESS = re.compile(r"\(__(ubuf|cbuf|cc|ca|cb)__ (\w+) ?\*\)(\d+)")
_CTYPES: dict[str, Any] = {
    "float": ctypes.c_float, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint32_t": ctypes.c_uint32,
}  # fmt: skip
_DTYPES = {
    "float": torch.float32, "bfloat16_t": torch.bfloat16, "int32_t": torch.int32, "uint8_t": torch.uint8,
    "int8_t": torch.int8, "int16_t": torch.int16, "int64_t": torch.int64,
}  # fmt: skip


def run(kernel: Lowered, cores: int, *, backwards: bool = False, **arguments: Any) -> Mapping[str, int]:
    """Execute ``kernel`` on ``cores`` cores, one after the other. With tensors of a device the kernel that ``bisheng``
    makes of it is launched there instead (:mod:`deepinfer_ascend.jit.compiling`), and nothing is returned.

    :param backwards: threads of a region run in the other order up to each barrier. Results that differ are a race.
    :param arguments: by name, contiguous tensors of the host, which it reads and writes, and numbers.
    :returns: bytes used of each on-chip memory, from its first to its last.
    :raises ShapeContractError: an argument is missing, or a tensor of another type.
    :raises VendorImportError: with tensors of a device: ``bisheng`` is not here.
    :raises BackendUnavailable: there is no C++ compiler.
    :raises EngineError: the kernel does what a core of the device would not survive.
    """
    if any(isinstance(given, Tensor) and given.device.type != "cpu" for given in arguments.values()):
        compiled(kernel.name, dict(kernel.sizes))(**arguments)
        return {}
    passed = [_passed(kernel, argument, arguments) for argument in kernel.arguments]
    if len(arguments) != len(kernel.arguments):
        raise misfit(kernel.name, "arguments", sorted(a.name for a in kernel.arguments), sorted(arguments))
    used = (ctypes.c_long * len(_MEMORIES))()
    status = _library(kernel).run(cores, int(backwards), used, *passed)
    if status:
        raise EngineError(
            f"the lowered kernel {kernel.name} is wrong: {FAULTS[status]}",
            reason="found by the shim that executes it on the processor",
            remedy="this is a fault of backend ascend, please report it",
            details={"kernel": kernel.name, "fault": status},
        )
    return {name: n for name, n in zip(_MEMORIES.values(), used, strict=True) if n}


def _passed(kernel: Lowered, argument: Any, given: dict[str, Any]) -> Any:
    if argument.name not in given:
        raise misfit(kernel.name, argument.name, "given", "nothing")
    value = given[argument.name]
    if not argument.is_pointer:
        return _CTYPES[argument.ctype](value)
    wanted = _DTYPES[argument.ctype]
    if (
        not isinstance(value, Tensor)
        or value.dtype != wanted
        or not value.is_contiguous()
        or value.device.type != "cpu"
    ):
        raise misfit(kernel.name, argument.name, f"{wanted}, contiguous, of the host", getattr(value, "dtype", value))
    return ctypes.c_void_p(value.data_ptr())


def host_source(kernel: Lowered) -> str:
    """The source with on-chip addresses, which count from 0, moved into the shim's memories; and a loop over cores."""
    source = _ADDRESS.sub(lambda m: f"shim::at<{m[2]}>(shim::{_MEMORIES[m[1]]}.bytes, {m[3]})", kernel.source)
    parameters = "".join(f", {'void *' if a.is_pointer else a.ctype + ' '}{a.name}" for a in kernel.arguments)
    passed = ", ".join(f"({a.ctype} *){a.name}" if a.is_pointer else a.name for a in kernel.arguments)
    held = [(i, name) for i, name in enumerate(_MEMORIES.values()) if f"shim::{name}.bytes" in source]
    each = " ".join(f"take(shim::{name}, used[{i}]);" for i, name in held)
    cleared = " ".join(f"shim::{name}.clear();" for _, name in held)
    return f"""{source}
template <class Memory> static void take(const Memory &memory, long &used) {{
  if (!memory.is_whole()) shim::fail(shim::OVERFLOW);
  if (memory.used() > used) used = memory.used();
}}
extern "C" int run(int cores, int backwards, long *used{parameters}) {{
  shim::failed = shim::NONE;
  shim::backwards = backwards;
  for (int core = 0; core < cores && !shim::failed; ++core) {{
    {cleared}
    block_idx = core;
    {kernel.entry}({passed});
    {each}
  }}
  return shim::failed;
}}
"""


@functools.lru_cache(maxsize=64)
def _library(kernel: Lowered) -> Any:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise BackendUnavailable(
            "lowered kernels cannot be executed here",
            reason="there is no C++ compiler: g++ is not on PATH, and CXX is not set",
            remedy="install g++",
            details={"backend": "ascend"},
        )
    source = host_source(kernel)
    digest = hashlib.sha256(" ".join((compiler, *FLAGS)).encode() + source.encode() + _shim_bytes()).hexdigest()[:24]
    built = cache_folder() / f"{kernel.name}-{digest}.so"
    if not built.exists():
        publish(built, functools.partial(_compile, kernel, compiler, source))
    return ctypes.CDLL(str(built))


def _compile(kernel: Lowered, compiler: str, source: str, target: Path) -> None:
    done = subprocess.run(
        [compiler, *FLAGS, f"-I{SHIM}", "-x", "c++", "-", "-o", str(target)],
        input=source, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise EngineError(
            f"the lowered kernel {kernel.name} cannot be compiled for the processor",
            reason=next((line for line in done.stderr.splitlines() if "error" in line), done.stderr[:300]),
            remedy="the shim lacks what it calls: extend emulation/shim, or report it",
            details={"kernel": kernel.name, "compiler": compiler},
        )


@functools.cache
def _shim_bytes() -> bytes:
    return b"".join(path.read_bytes() for path in sorted(SHIM.rglob("*.h")))
