"""The ops with kernels of this backend, one file for each file of ``deepinfer_cpu.ops``.

A module exports ``OPS``, op id -> callable. What no module exports is done by the op of ``cpu`` on tensors of the
device, and the execution plan says so.
"""
