"""From settings to a running engine: read the model's card, choose and check the parts, size the pools, join them."""
