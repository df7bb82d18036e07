"""Build of the C core: the only place that calls ``ffi.set_source``. Run by setuptools (``cffi_modules``).

cffi reads two texts: the generated ``cdef.txt`` (records and enums) and ``include/di_core_decl.h``, which holds no
preprocessor lines, so the compiler and cffi see the same declarations.
"""

import tomllib
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
SOURCES = sorted(p.relative_to(HERE).as_posix() for p in (HERE / "src").glob("di_*.c"))
HEADERS = sorted(p.relative_to(HERE).as_posix() for folder in ("include", "src") for p in (HERE / folder).glob("*.h"))
VERSION = tomllib.loads((HERE / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

ffi = FFI()
ffi.cdef((HERE / "cdef.txt").read_text(encoding="utf-8"))
ffi.cdef((HERE / "include" / "di_core_decl.h").read_text(encoding="utf-8"))
ffi.set_source(
    "deepinfer_native._native",
    '#include "di_core.h"',
    sources=SOURCES,
    depends=[*HEADERS, "cdef.txt"],
    include_dirs=["include", "src"],
    define_macros=[("DI_VERSION", f'"{VERSION}"')],
    extra_compile_args=["-std=c11", "-O3", "-fvisibility=hidden", "-pthread"],
    extra_link_args=["-pthread"],
    py_limited_api=True,
)
