"""Mistakes in labelled structures that numbers give away: wrong units, wrong signs, copies, atoms out of reach.

What cannot be right is an error. What may be right in an unusual data set is a sentence for a warning.
"""

from eqlayers.data.plausible.parts import check_parts, check_reach
from eqlayers.data.plausible.physics import check_physics

__all__ = ["check_parts", "check_physics", "check_reach"]
