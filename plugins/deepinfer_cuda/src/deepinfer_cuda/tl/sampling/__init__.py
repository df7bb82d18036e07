"""Kernels of the sampler: the best token, the draw from a filtered row, masks."""
