"""Tests of every kind of plugin: its manifest, its entry point, what importing it costs."""
