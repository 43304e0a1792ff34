"""The compiler, and the cache of compiled kernels on disk."""
