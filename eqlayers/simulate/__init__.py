"""Relaxation and molecular dynamics with potentials, as functions and as commands, by the algorithms of ASE."""

from ..core.errors import needs_packages
from ..hints.names import answer_names

with needs_packages("eqlayers.simulate", "train"):
    import ase  # noqa: F401
    import vesin  # noqa: F401

from .dynamics import ENSEMBLES, DynamicsOutcome, DynamicsSettings, run_dynamics
from .relaxation import OPTIMIZERS, RelaxationOutcome, relax

__all__ = [
    "ENSEMBLES",
    "OPTIMIZERS",
    "DynamicsOutcome",
    "DynamicsSettings",
    "RelaxationOutcome",
    "relax",
    "run_dynamics",
]

answer_names(__name__)
