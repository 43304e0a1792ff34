"""The base of all layers, and their weights."""
