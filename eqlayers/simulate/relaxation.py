"""Relaxation of atoms, and of the cell with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms, units
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS, FIRE, LBFGS
from ase.stress import full_3x3_to_voigt_6_stress

from ..core.checks import check_choice, check_flag, check_integer, check_number, check_type
from ..core.errors import ConfigError
from .frames import check_trajectory, written_to
from .watch import progress, stop_asked

OPTIMIZERS: dict[str, Callable[..., Any]] = {"fire": FIRE, "bfgs": BFGS, "lbfgs": LBFGS}


class RelaxationOutcome(NamedTuple):
    """The outcome of a relaxation.

    Attributes:
        atoms: In their last state.
        steps: That were taken.
        converged: Whether forces, and with a cell the stress times volume per atom, are below the limit.
        stopped: Whether Ctrl-C ended it.
        energies: eV, before and after.
        forces: eV/Angstrom, the largest on an atom before and after.
        stress: eV/Angstrom^3, the largest component that is left along periodic axes, less the pressure; 0 of a cell
            that does not move.
        cell_force: eV/Angstrom, of that stress as the limit of forces bounds it: times volume, per atom.
    """

    atoms: Atoms
    steps: int
    converged: bool
    stopped: bool
    energies: tuple[float, float]
    forces: tuple[float, float]
    stress: float = 0.0
    cell_force: float = 0.0


def relax(
    atoms: Atoms,
    calculator: Any,
    *,
    cell: bool = False,
    fmax: float = 0.01,
    steps: int = 500,
    optimizer: str = "fire",
    pressure: float = 0.0,
    trajectory: str | Path | None = None,
) -> RelaxationOutcome:
    """Move atoms to a minimum of the energy.

    Args:
        atoms: Where to begin; a copy is moved. Their constraints count.
        calculator: Of ASE, such as :class:`eqlayers.integrations.ase.Calculator`; in float64 for limits below 0.001.
        cell: Whether the cell moves as well, by the logarithm of its deformation; along periodic axes alone, whatever
            their directions, so that the vacuum of a slab stays.
        fmax: eV/Angstrom, the largest force at the end; with ``cell`` also eV, the stress times volume per atom.
        steps: At most.
        optimizer: A key of ``OPTIMIZERS``.
        pressure: GPa, from outside; with ``cell``.
        trajectory: A ``.traj`` or ``.xyz`` for every step; None keeps none.

    Returns:
        A :class:`RelaxationOutcome`, also where the limit was not reached.

    Raises:
        ConfigError: An argument out of range, or a cell that cannot move.

    Source:
        Bitzek et al. 2006, doi:10.1103/PhysRevLett.97.170201, for FIRE.

    Example:
        >>> import torch
        >>> from ase.build import molecule
        >>> from eqlayers.integrations.ase import Calculator
        >>> from eqlayers.models import Potential
        >>> from eqlayers.testing import ToyNetwork
        >>> calculator = Calculator(Potential(ToyNetwork(2), species=[1, 8]), torch.float64)
        >>> found = relax(molecule("H2O"), calculator)
        >>> found.converged, found.energies[1] < found.energies[0]
        (True, True)
    """
    check_type("atoms", atoms, Atoms, "an ase.Atoms", "Read one with ase.io.read(path).")
    limit = check_number("fmax", fmax, above=0, unit=" of eV/Angstrom", fix="0.01 is usual.")
    most = check_integer("steps", steps, 0)
    kind = OPTIMIZERS[check_choice("optimizer", optimizer, OPTIMIZERS)]
    outside = check_number("pressure", pressure, unit=" of GPa", fix="0 is usual.") * units.GPa
    place = None if trajectory is None else check_trajectory(trajectory, "the trajectory", new=False)
    moved = atoms.copy()
    moved.calc = calculator
    moving: Any = moved
    if check_flag("cell", cell):
        if not (moved.pbc.any() and moved.cell.volume > 0):
            raise ConfigError(
                f"a cell that moves must be periodic with a volume, got pbc {moved.pbc.tolist()} and cell "
                f"{moved.cell.array.tolist()}. Relax the atoms alone."
            )
        moved = _AlongPeriods(moved, outside)
        moved.calc = calculator
        moving = FrechetCellFilter(moved, scalar_pressure=outside)
    elif outside:
        raise ConfigError("pressure must be 0 where the cell does not move, got another. Pass --cell as well.")
    before = (float(moved.get_potential_energy()), largest_force(moved))
    residual = moved.residual if isinstance(moved, _AlongPeriods) else lambda: 0.0
    converged = stopped = False
    with stop_asked() as stop, written_to(place) as write, progress("relaxation", most) as say:
        steps_of = kind(moving, logfile=None)
        for converged in steps_of.irun(fmax=limit, steps=most):
            write(moved)
            left = f", {residual() / units.GPa:.3g} GPa" if cell else ""
            say(int(steps_of.nsteps), f"{largest_force(moved):.3g} eV/A{left}")
            stopped = stop() and not converged
            if stopped:
                break
    after = (float(moved.get_potential_energy()), largest_force(moved))
    energies, forces = zip(before, after, strict=True)
    stress = residual()
    of_cell = float(np.linalg.norm(moving.get_forces()[len(moved) :], axis=1).max(initial=0.0))
    plain = moved.copy()
    plain.calc = calculator
    return RelaxationOutcome(plain, int(steps_of.nsteps), bool(converged), stopped, energies, forces, stress, of_cell)


class _AlongPeriods(Atoms):
    """Atoms whose stress acts along periodic axes alone, so that a cell filter leaves open axes as they are.

    The mask of ASE's filters names Cartesian axes, which need not be axes of the lattice.
    """

    def __init__(self, atoms: Atoms, pressure: float) -> None:
        super().__init__(atoms)
        _add_arrays(self, atoms)
        across, _ = np.linalg.qr(atoms.cell.array[atoms.pbc].T)  # spans what the strain leaves in place, too
        self._along, self._pressure = across @ across.T, pressure * np.eye(3)

    def copy(self) -> Atoms:
        """Plain atoms, as calculators and filters keep them."""
        plain = Atoms(self)
        _add_arrays(plain, self)
        return plain

    def get_stress(self, voigt: bool = True, *args: Any, **options: Any) -> Any:
        """The stress, such that with the pressure of a filter only the part along periodic axes is left."""
        full = super().get_stress(False, *args, **options) + self._pressure
        stress = self._along @ full @ self._along - self._pressure
        return full_3x3_to_voigt_6_stress(stress) if voigt else stress

    def residual(self) -> float:
        """eV/Angstrom^3: the largest stress that is left along periodic axes, less the pressure from outside."""
        return float(np.abs(self.get_stress(voigt=False) + self._pressure).max())


def _add_arrays(to: Atoms, atoms: Atoms) -> None:
    """Arrays of every atom that a constructor of ASE leaves out."""
    for name in atoms.arrays.keys() - to.arrays.keys():
        to.set_array(name, atoms.arrays[name])


def largest_force(atoms: Atoms) -> float:
    """eV/Angstrom."""
    return float(np.linalg.norm(atoms.get_forces(), axis=1).max())
