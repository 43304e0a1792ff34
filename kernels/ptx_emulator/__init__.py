"""Runs the machine code of printed GPU kernels without a GPU: numbers, races and what memory it asks for.

`emulated` lets layers run on the PTX that Triton makes for them; `bounds` says from the counts what a processor needs
at least. Not modelled: the order of blocks in time, caches, clocks under load, gaps between launches, and the second
rounding of a fused multiply-add in rare cases. Nothing here is a measurement.
"""
