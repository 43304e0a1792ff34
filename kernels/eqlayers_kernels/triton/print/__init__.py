"""Prints programs and formulas as Triton kernels whose values fit into the registers."""
