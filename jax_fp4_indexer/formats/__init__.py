"""What the bytes mean: E2M1 codes, scale bytes, and the two orders scales are stored in. NumPy only."""
