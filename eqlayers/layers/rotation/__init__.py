"""Rotations of features."""
