"""Kernels that move rows: norm, rotation, quantisation, cache store and load, compressor."""
