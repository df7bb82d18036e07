"""The sublayers of a block, one module each; all of them compute through the ops of a backend."""
