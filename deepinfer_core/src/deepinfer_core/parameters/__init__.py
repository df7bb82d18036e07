"""What a request may ask for: fields, their ranges, and how they are read."""
