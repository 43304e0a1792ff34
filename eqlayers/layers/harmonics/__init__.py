"""Spherical harmonics of vectors and edges."""
