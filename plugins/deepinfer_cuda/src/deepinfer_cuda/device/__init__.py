"""What is not an op: transfers between host and device, memory, streams."""
