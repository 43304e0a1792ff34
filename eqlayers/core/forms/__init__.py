"""Forms, their keys, and their texts."""

from .program import Form

__all__ = ["Form"]
