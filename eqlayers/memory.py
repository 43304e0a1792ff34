"""Memory that is kept between calls."""

from .core.memory import KeptMemory, keep_memory, release_memory

__all__ = ["KeptMemory", "keep_memory", "release_memory"]
