"""Forms, under their keys."""

from .core.forms.program import Form
from .moved import answer_for_former_names

__all__ = ["Form"]

answer_for_former_names(__name__)  # of pickles
