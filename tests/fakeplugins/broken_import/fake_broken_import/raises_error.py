"""Refuses the driver that it finds."""

raise RuntimeError("driver 410.48 is too old, 450.80 is needed")
