"""Tests of logits filters."""
