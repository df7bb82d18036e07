"""Kernels in TileLang's dialect for Ascend, lowered to AscendC without a device. Every width is a parameter.

A row belongs to one vector core, which takes every 64th: rows arrive in its buffer (UB), threads of a SIMT region
compute, and the result is copied back. Sizes that change from call to call (rows) are arguments of the kernel.
"""
