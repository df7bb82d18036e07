"""Schedulers to compare with, all driven by the same loop (`drive`)."""
