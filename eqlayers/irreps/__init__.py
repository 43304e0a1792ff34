"""Irreps: their algebra, layouts of features, and instructions of products."""
