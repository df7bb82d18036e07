"""Kernels on one GPU: their time beside the bytes and products they need, and beside what else could do the work."""
