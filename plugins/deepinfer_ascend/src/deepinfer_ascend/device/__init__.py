"""What is not an op: environment and options of the runtime, streams and copies, events, graphs, faults of a device."""
