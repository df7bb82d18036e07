"""TileLang kernel factories, one file an area."""
