"""The loop over segments of the sparse products, and its launcher."""
