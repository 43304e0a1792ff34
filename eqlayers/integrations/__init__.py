"""Replace e3nn layers in models of other packages, convert models of MACE and NequIP, and use potentials in ASE."""

from ..hints.names import answer_names
from .forces import ForceCheck, check_forces
from .from_mace import from_mace, to_mace
from .from_nequip import from_nequip, to_nequip
from .replace import accelerate, deaccelerate
from .report import Coverage, Report, Row

__all__ = [
    "Coverage",
    "ForceCheck",
    "Report",
    "Row",
    "accelerate",
    "check_forces",
    "deaccelerate",
    "from_mace",
    "from_nequip",
    "to_mace",
    "to_nequip",
]


answer_names(__name__)
