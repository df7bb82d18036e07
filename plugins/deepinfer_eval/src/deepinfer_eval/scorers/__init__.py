"""Scorers: a class each, made of its parameters; none keeps anything of an answer."""
