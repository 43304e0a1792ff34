"""Launches of printed kernels, the tables of edges that they read, and compilation ahead of time."""
