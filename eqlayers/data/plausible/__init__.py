"""Mistakes in labelled structures that numbers give away: wrong units, wrong signs, copies, atoms out of reach.

What cannot be right is an error. What may be right in an unusual data set is a sentence for a warning.
"""

from eqlayers.data.plausible.magnitudes import check_sizes
from eqlayers.data.plausible.parts import check_parts, check_reach, check_shifts
from eqlayers.data.plausible.physics import check_physics
from eqlayers.data.plausible.rows import named

__all__ = ["check_parts", "check_physics", "check_reach", "check_shifts", "check_sizes", "named"]
