"""What kernels share: number formats and reductions."""
