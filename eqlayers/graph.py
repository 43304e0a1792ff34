"""Edges of a graph, sorted once."""

from .core.graph import Graph

__all__ = ["Graph"]
