"""Kernels in Triton: the segment loop, its launcher, its block sizes, and ahead-of-time compilation.

Importing this package imports no triton; :mod:`.segment` does, and :mod:`.launch` imports it at the first launch.
"""
