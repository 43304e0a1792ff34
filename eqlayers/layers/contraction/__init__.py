"""Symmetric contractions, as MACE has them."""
