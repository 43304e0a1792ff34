"""Potentials as native programs: one C program from a trace, which needs neither Python nor torch."""

from .files import Deployed, deploy
from .potential import NativePotential, as_native

__all__ = ["Deployed", "NativePotential", "as_native", "deploy"]
