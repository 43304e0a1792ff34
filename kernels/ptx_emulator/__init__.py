"""Runs the PTX of printed GPU kernels without a GPU: results, races, and counts of memory accesses.

`emulated` lets layers run on the PTX that Triton compiles for them; `bounds` computes lower bounds of times from the
counts. Not modelled: the order of blocks in time, caches, clocks under load, gaps between launches, and the second
rounding of a fused multiply-add in rare cases. Nothing here is a measurement.
"""
