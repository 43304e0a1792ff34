"""Layers: one folder for each family."""
