"""Low-level kernels: plain tensors and integers in, tensors out. Nothing here knows irreps, modules or autograd."""
