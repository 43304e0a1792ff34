"""Forms, their keys, and their texts."""

from .description import Form

__all__ = ["Form"]
