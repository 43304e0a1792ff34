"""Tensor products over the edges of a graph, summed at the receivers."""
