"""Potentials in LAMMPS: pair style `eqlayers`, a plugin that runs native programs without Python and torch."""

from .plugin import Built, build, plugins

__all__ = ["Built", "build", "plugins"]
