"""Calls of compiled kernels: addresses, chunks, threads, memory, sorted edges."""
