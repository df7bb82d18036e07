"""Scores of compressed keys, the best of them, and candidate blocks."""
