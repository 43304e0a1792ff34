"""Predictions of a potential for one structure, and comparisons with predictions for transformed structures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..models import Potential, Structures
from ..models.structures import NeighborLists, collate

if TYPE_CHECKING:
    from ase import Atoms

#: Assumed rounding error of a network in eps: sums over hundreds of edges and channels in several layers.
ROUNDINGS = 2**12
EPS = torch.finfo(torch.float64).eps
MARGIN = 0.1  # Angstrom added to the cutoff of neighbour lists, more than atoms are displaced
#: Units of the predictions of a potential.
UNITS = {"energy": "eV", "forces": "eV/A", "dipole": "e A", "polarizability": "A^3"}
#: Rows of name, (deviation, bound by rounding), and unit.
Deviations = list[tuple[str, tuple[float, float], str]]
STEPS = torch.tensor([1.0, -1.0, 2.0, -2.0, 4.0, -4.0], dtype=torch.float64, device="cpu")
EYE = torch.eye(3, dtype=torch.float64, device="cpu")


@dataclass
class Case:
    """One structure, the predictions of a potential for it, and bounds of their rounding errors."""

    potential: Potential
    atoms: Atoms
    batch: Structures
    predictions: dict[str, Tensor]
    generator: torch.Generator

    @classmethod
    def of(cls, potential: Potential, atoms: Atoms, generator: torch.Generator) -> Case:
        """Predict for a structure, with a neighbour list beyond the cutoff by ``MARGIN``."""
        batch = collate(potential, [atoms], [NeighborLists(potential.cutoff + MARGIN)(atoms)])
        energies = ("energies", "forces", "virials") if "energy" in potential.properties else ()
        predictions = potential(batch, (*energies, *potential.split.tensors), create_graph=False)
        return cls(potential, atoms, batch, {name: value.detach() for name, value in predictions.items()}, generator)

    def predict(self, other: Structures, *outputs: str) -> dict[str, Tensor]:
        """Predictions of the potential for other structures, by name."""
        with torch.no_grad():
            predictions: dict[str, Tensor] = self.potential(other, outputs, create_graph=False)
        return predictions

    @property
    def energy_rounding(self) -> float:
        """Bound of the rounding error of the total energy, in eV."""
        index = self.potential.kind_of(self.batch.z)
        learned = (self.predictions["energies"] - self.potential.shifts[index]).abs() + self.potential.scales[index]
        return EPS * float(ROUNDINGS * learned.sum() + 4 * self.predictions["energies"].abs().sum())

    @property
    def force_rounding(self) -> float:
        """Bound of the rounding error of a force component, in eV/Angstrom."""
        return EPS * ROUNDINGS * float(self.predictions["forces"].abs().max() + self.potential.scales.max())

    def draw(self, *shape: int) -> Tensor:
        """Uniform random numbers from -1 to 1, on the device of the potential."""
        return self.to_device(2 * torch.rand(*shape, generator=self.generator, dtype=torch.float64, device="cpu") - 1)

    def to_device(self, values: Tensor) -> Tensor:
        """Move a tensor to the device of the potential."""
        return values.to(self.batch.pos.device)

    def moved(self, pos: Tensor, cell: Tensor | None = None) -> Structures:
        """A batch of K copies with other positions ``[K, A, 3]`` and optionally cells ``[K, 3, 3]``."""
        count, atoms = pos.shape[:2]
        index = torch.arange(count, device=pos.device)
        old = self.batch
        assert old.cell is not None
        assert old.shifts is not None
        edges = (old.edge_index[:, None] + atoms * index[:, None]).reshape(2, -1)
        cells, shifts = old.cell.expand(count, 3, 3) if cell is None else cell, old.shifts.repeat(count, 1)
        batch = index.repeat_interleave(atoms)
        return Structures(old.z.repeat(count), pos.reshape(-1, 3), edges, batch, count, cells, shifts)

    def difference(self, other: Structures, matrix: Tensor, order: Tensor | None = None) -> Deviations:
        """Compare predictions for transformed atoms (rotated by ``matrix``, permuted by ``order``, or repeated)."""
        names = [name for name in ("energy", "forces", "dipole", "polarizability") if name in self.predictions]
        predictions = self.predict(other, *names)
        copies = len(other.z) // len(self.batch.z)
        rows: Deviations = []
        for name in names:
            expected = self.predictions[name]
            if name == "forces":
                expected = (expected if order is None else expected[order]).repeat(copies, 1)
            else:
                expected = copies * expected
            expected = expected if name == "energy" else expected @ matrix.T
            expected = matrix @ expected if name == "polarizability" else expected
            deviation = float((predictions[name] - expected).abs().max())
            rows.append((name, (deviation, self.rounding(name, copies)), UNITS[name]))
        return rows

    def rounding(self, name: str, copies: int = 1) -> float:
        """Bound of the rounding error of a prediction, summed over copies."""
        if name == "energy":
            return copies * self.energy_rounding
        if name == "forces":
            return self.force_rounding
        size = float(self.predictions[name].abs().max() + self.potential.split.get_buffer(f"{name}_scale"))
        return EPS * ROUNDINGS * copies * len(self.batch.z) * size


def slope_of(values: Tensor, step: float) -> tuple[Tensor, float]:
    """The derivative from values ``[6, ...]`` at ``STEPS``, and a bound of its error.

    Differences at h, 2 h and 4 h give two estimates with errors c h^4 and 16 c h^4 for a smooth function. The factor of
    the bound covers edges that cross the cutoff, where the third derivative jumps.
    """
    once, twice, four = (values[i] - values[i + 1] for i in (0, 2, 4))
    once, twice, four = once / (2 * step), twice / (4 * step), four / (8 * step)
    fine, coarse = (4 * once - twice) / 3, (4 * twice - four) / 3
    return fine, 10 * float((fine - coarse).abs().max())


def worst_of(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The largest deviation (NaN if any is NaN) and the largest bound of several directions."""
    deviations = [deviation for deviation, _ in pairs]
    nan = [deviation for deviation in deviations if deviation != deviation]
    return (nan or [max(deviations)])[0], max(bound for _, bound in pairs)
