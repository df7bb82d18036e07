"""Tests of grammar engines."""
