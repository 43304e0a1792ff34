"""Tensor products of features."""
