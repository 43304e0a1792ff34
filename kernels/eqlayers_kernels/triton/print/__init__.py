"""Programs and formulas as Triton kernels that fit the registers."""
