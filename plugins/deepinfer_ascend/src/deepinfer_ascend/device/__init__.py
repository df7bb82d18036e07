"""What is not an op: the runtime's environment, events, graphs, and the faults of a device."""
