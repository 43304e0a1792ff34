"""The arithmetic of kernels, written once for an abstract `Writer`, which C and Triton implement."""
