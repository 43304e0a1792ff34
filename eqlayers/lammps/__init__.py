"""Potentials in LAMMPS: pair style `eqlayers`, a plugin that runs native programs without Python and torch."""

from .build import Built, build, plugins

__all__ = ["Built", "build", "plugins"]
