"""Dense products with few rows: blocks that share the rows in shared memory, and streams for the fewest."""
