"""Turns `contracts/schema/*.toml` into C, Python and documents. Run through `contracts/generate.py`; not installed."""
