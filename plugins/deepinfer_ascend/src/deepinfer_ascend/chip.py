"""Sizes of an Ascend 950 that code here depends on (``spec/kernels.md`` 7.1). No driver is asked for them."""

from __future__ import annotations

CUBE_CORES, VECTOR_CORES = 32, 64
"""AI cores, each with one cube and two vector cores."""
UB_BYTES, L1_BYTES, L0C_BYTES = 248 << 10, 512 << 10, 256 << 10
"""On-chip memory of a core: of a vector core with SIMD code, of a cube, and of its accumulators."""
L0A_BYTES = L0B_BYTES = 64 << 10
"""Operands of the cube, which TileLang's products fill by themselves."""
UB_BYTES_SIMT = 216 << 10
"""What SIMT code leaves of the first."""
