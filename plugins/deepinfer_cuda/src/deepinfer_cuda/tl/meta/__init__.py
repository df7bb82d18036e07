"""Integer work of a step: its tokens, lengths, slots and index rows, one launch an op."""
