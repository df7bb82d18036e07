"""Checkpoint tensors: what must be there (table), and reading it (loader)."""
