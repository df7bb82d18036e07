"""Tests of a backend: its plugin, its life, and each of its ops against a plain reference."""
