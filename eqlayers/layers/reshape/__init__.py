"""Rearrangements of irreps."""
