"""Kernels in C for CPUs: the compiler, the cache of compiled kernels on disk, and the threads that run them.

Importing this package starts no compiler and no thread, and reads neither the environment nor the disk.
"""
