"""Kernels in Triton: printed forms, the segment loop of sparse products, launchers, sizes, ahead-of-time compilation.

Importing this package imports no triton; :mod:`.kernels` does, and :mod:`.run` imports that module at the first launch.
"""
