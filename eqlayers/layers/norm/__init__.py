"""Norms of irreps, and normalisation."""
