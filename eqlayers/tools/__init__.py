"""Explanations of layers, and kernels compiled ahead of time."""
