"""The segment kernel, which runs sparse products, and its launcher."""
