"""Tests of samplers: those of whole steps, and row samplers."""
