"""Forms, under their keys."""

from .core.forms.program import Form

__all__ = ["Form"]
