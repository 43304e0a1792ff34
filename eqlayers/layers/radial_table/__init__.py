"""Radial networks as tables."""
