"""Mistakes in labelled structures that numbers give away: wrong units, wrong signs, copies, atoms out of reach.

What cannot be right is an error. What may be right in an unusual data set is a sentence for a warning.
"""

from eqlayers.data.plausible.parts import check_parts
from eqlayers.data.plausible.physics import check_physics
from eqlayers.data.plausible.reach import check_reach

__all__ = ["check_parts", "check_physics", "check_reach"]
