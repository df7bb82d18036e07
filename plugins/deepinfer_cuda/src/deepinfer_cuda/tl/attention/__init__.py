"""Sparse attention: one softmax over keys that each row names, keys being values too (``spec/kernels.md`` 2.3)."""
