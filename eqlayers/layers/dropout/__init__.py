"""Dropout of irrep copies, and of whole branches."""
