"""What is not an op: memory, copies between host and device, streams, graphs. ``runtime`` puts them together."""
