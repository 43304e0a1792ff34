"""Relaxation of atomic positions, and optionally of the cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ase import Atoms, units
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS, FIRE, LBFGS
from ase.stress import full_3x3_to_voigt_6_stress

from ..cli.notices import progress, stop_asked
from ..core.checks import check_choice, check_flag, check_integer, check_number, check_type
from ..core.errors import ConfigError
from .frames import check_trajectory, written_to

OPTIMIZERS: dict[str, Callable[..., Any]] = {"fire": FIRE, "bfgs": BFGS, "lbfgs": LBFGS}


class RelaxationOutcome(NamedTuple):
    """The outcome of a relaxation.

    Attributes:
        atoms: Final state.
        steps: Number of steps taken.
        converged: Whether forces, and with a cell the stress times volume per atom, are below the limit.
        stopped: Whether Ctrl-C ended the relaxation.
        energies: eV, before and after.
        forces: eV/Angstrom, the largest force on an atom before and after.
        stress: eV/Angstrom^3, the largest residual component along periodic axes, with the pressure subtracted; 0 with
            a fixed cell.
        cell_force: eV, the residual stress times volume per atom, which ``fmax`` bounds as it bounds forces.
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
        atoms: Initial structure; a copy is moved, under the constraints of the atoms.
        calculator: ASE calculator, such as :class:`eqlayers.integrations.ase.Calculator`; in float64 for limits below
            0.001.
        cell: Whether the cell is relaxed as well, in the logarithm of its deformation, and along periodic axes only, so
            that the vacuum of a slab stays.
        fmax: eV/Angstrom, the largest force at the end; with ``cell`` also eV, the stress times volume per atom.
        steps: Largest number of steps.
        optimizer: A key of ``OPTIMIZERS``.
        pressure: External pressure in GPa, with ``cell``.
        trajectory: A ``.traj`` or ``.xyz`` for every step; None writes none.

    Returns:
        A :class:`RelaxationOutcome`, also if the limit was not reached.

    Raises:
        ConfigError: An argument is out of range, or the cell has no volume.

    Source:
        Bitzek et al. 2006, doi:10.1103/PhysRevLett.97.170201, for FIRE.

    Example:
        >>> import torch
        >>> from ase.build import molecule
        >>> from eqlayers.integrations.ase import Calculator
        >>> from eqlayers.models import Potential
        >>> from eqlayers.testing import ToyNetwork
        >>> calculator = Calculator(Potential(ToyNetwork(2), species=[1, 8]), torch.float64)
        >>> outcome = relax(molecule("H2O"), calculator)
        >>> outcome.converged, outcome.energies[1] < outcome.energies[0]
        (True, True)
    """
    check_type("atoms", atoms, Atoms, "an ase.Atoms", "Read one with ase.io.read(path).")
    limit = check_number("fmax", fmax, above=0, unit=" of eV/Angstrom", fix="0.01 is usual.")
    most = check_integer("steps", steps, 0)
    optimizer_class = OPTIMIZERS[check_choice("optimizer", optimizer, OPTIMIZERS)]
    external = check_number("pressure", pressure, unit=" of GPa", fix="0 is usual.") * units.GPa
    path = None if trajectory is None else check_trajectory(trajectory, "the trajectory", new=False)
    moved = atoms.copy()
    moved.calc = calculator
    moving: Any = moved
    if check_flag("cell", cell):
        if not (moved.pbc.any() and moved.cell.volume > 0):
            raise ConfigError(
                f"a cell that moves must be periodic with a volume, got pbc {moved.pbc.tolist()} and cell "
                f"{moved.cell.array.tolist()}. Relax the atoms alone."
            )
        moved = _AlongPeriods(moved, external)
        moved.calc = calculator
        moving = FrechetCellFilter(moved, scalar_pressure=external)
    elif external:
        raise ConfigError("pressure must be 0 where the cell does not move, got another. Pass --cell as well.")
    before = (float(moved.get_potential_energy()), largest_force(moved))
    residual = moved.residual if isinstance(moved, _AlongPeriods) else lambda: 0.0
    converged = stopped = False
    with stop_asked() as stop, written_to(path) as write, progress("relaxation", most) as say:
        steps_of = optimizer_class(moving, logfile=None)
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
    """Atoms with stress projected on periodic axes, so that a cell filter of ASE does not deform open ones."""

    def __init__(self, atoms: Atoms, pressure: float) -> None:
        super().__init__(atoms)
        _add_arrays(self, atoms)
        basis, _ = np.linalg.qr(atoms.cell.array[atoms.pbc].T)  # orthonormal basis of the periodic directions
        self._along, self._pressure = basis @ basis.T, pressure * np.eye(3)

    def copy(self) -> Atoms:
        """A copy of class ``Atoms``, which calculators and filters store."""
        plain = Atoms(self)
        _add_arrays(plain, self)
        return plain

    def get_stress(self, voigt: bool = True, *args: Any, **options: Any) -> Any:
        """The stress, whose sum with the external pressure is zero along open axes."""
        full = super().get_stress(False, *args, **options) + self._pressure
        stress = self._along @ full @ self._along - self._pressure
        return full_3x3_to_voigt_6_stress(stress) if voigt else stress

    def residual(self) -> float:
        """Largest component of stress plus external pressure along periodic axes, in eV/Angstrom^3."""
        return float(np.abs(self.get_stress(voigt=False) + self._pressure).max())


def _add_arrays(to: Atoms, atoms: Atoms) -> None:
    """Copy the per-atom arrays that a constructor of ASE leaves out."""
    for name in atoms.arrays.keys() - to.arrays.keys():
        to.set_array(name, atoms.arrays[name])


def largest_force(atoms: Atoms) -> float:
    """Norm of the largest force on an atom, in eV/Angstrom."""
    return float(np.linalg.norm(atoms.get_forces(), axis=1).max())
