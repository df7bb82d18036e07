"""Kernels of the expert layer: gate, sort by expert, grouped products with FP4 weights, SwiGLU, combine."""
