"""Plausibility checks of labelled structures: wrong units, wrong signs, copies, atoms without neighbours.

Impossible labels raise an error. Labels that may be right in an unusual data set return sentences for warnings.
"""

from eqlayers.data.plausible.magnitudes import check_parts, check_reach, check_shifts, check_sizes
from eqlayers.data.plausible.physics import check_physics
from eqlayers.data.plausible.rows import named

__all__ = ["check_parts", "check_physics", "check_reach", "check_shifts", "check_sizes", "named"]
