"""Kernels from TileLang to AscendC, which needs no device: ``lowering`` makes the source, ``structure`` looks at it,
``survey`` does both for every kernel. ``hosted`` compiles a source for the processor, to be executed there.

Binaries for the device come from ``bisheng`` of CANN (``toolchain``, ``compiling``), and none was made: it may refuse a
source that lowers here. ``hosted`` hands a kernel with tensors of a device on to
them, and ``placing`` says whether kernels serve there.
"""
