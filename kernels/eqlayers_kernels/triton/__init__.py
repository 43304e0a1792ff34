"""Kernels in Triton: printed forms, the segment loop of sparse products, launchers, sizes, ahead-of-time compilation.

Importing this package imports no triton; :mod:`.segment` does, and :mod:`.launch` imports it at the first launch.
"""
