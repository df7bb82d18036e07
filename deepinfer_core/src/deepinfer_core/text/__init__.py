"""Text to token ids and back, and where it stops."""
