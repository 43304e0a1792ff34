"""Forms under their keys, and as text."""

from .program import Form

__all__ = ["Form"]
