"""Tests of scorers."""
