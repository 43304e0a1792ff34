"""Potentials as native programs: one C program from a trace, which needs neither Python nor torch."""

from .files import Deployed, deploy
from .potential import NativePotential

__all__ = ["Deployed", "NativePotential", "deploy"]
