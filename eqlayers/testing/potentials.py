"""Whether a potential is one: forces are its slopes, space has no preferred place or direction, neighbours fade out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..checks import check_items, check_number, check_seed, check_type
from ..errors import ConfigError
from ..models import Potential, Structures
from ..models.atoms import NeighborLists, check_atoms, collate
from .cutoff import cutoff_rows
from .equivariance import random_orthogonal
from .examples import example_structures

if TYPE_CHECKING:
    from ase import Atoms

#: Roundings that a number of a network is taken to have: sums over hundreds of edges and channels, some layers deep.
ROUNDINGS = 2**12
EPS = torch.finfo(torch.float64).eps
_MARGIN = 0.1  # Angstrom by which lists reach farther, so that differences move no atom out of them
_DIRECTIONS = 3


@dataclass(frozen=True)
class PotentialRow:
    """One property: the deviation, in a unit, beside the largest that rounding explains."""

    name: str
    measured: float
    bound: float
    unit: str

    @property
    def ok(self) -> bool:
        """Whether rounding explains it; NaN is never explained."""
        return self.measured <= self.bound


@dataclass(frozen=True)
class PotentialReport:
    """All properties; ``str`` prints them."""

    rows: tuple[PotentialRow, ...]

    @property
    def failures(self) -> tuple[PotentialRow, ...]:
        """Rows that rounding does not explain."""
        return tuple(row for row in self.rows if not row.ok)

    @property
    def ok(self) -> bool:
        """Whether every property holds."""
        return not self.failures

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0)
        return "\n".join(
            f"{'ok  ' if row.ok else 'FAIL'} {row.name:{width}}  {row.measured:.1e} of {row.bound:.1e} {row.unit}"
            for row in self.rows
        )


@dataclass
class _Case:
    """One structure, what the potential says of it, and the size of rounding errors."""

    potential: Potential
    atoms: Atoms
    batch: Structures
    found: dict[str, Tensor]
    generator: torch.Generator

    @classmethod
    def of(cls, potential: Potential, atoms: Atoms, generator: torch.Generator) -> _Case:
        batch = collate(potential, [atoms], [NeighborLists(potential.cutoff + _MARGIN)(atoms)])
        found = potential(batch, ("energies", "forces", "virials"), create_graph=False)
        return cls(potential, atoms, batch, found, generator)

    def ask(self, other: Structures, *outputs: str) -> dict[str, Tensor]:
        """What the potential says of other structures."""
        with torch.no_grad():
            found: dict[str, Tensor] = self.potential(other, outputs, create_graph=False)
        return found

    @property
    def energy_rounding(self) -> float:
        """In eV, of the sum of the energies."""
        kind = self.potential.kind_of(self.batch.z)
        learned = (self.found["energies"] - self.potential.shifts[kind]).abs() + self.potential.scales[kind]
        return EPS * float(ROUNDINGS * learned.sum() + 4 * self.found["energies"].abs().sum())

    @property
    def force_rounding(self) -> float:
        """In eV/Angstrom, of a component."""
        return EPS * ROUNDINGS * float(self.found["forces"].abs().max() + self.potential.scales.max())

    def draw(self, *shape: int) -> Tensor:
        """Numbers from -1 to 1."""
        return self.place(2 * torch.rand(*shape, generator=self.generator, dtype=torch.float64, device="cpu") - 1)

    def place(self, values: Tensor) -> Tensor:
        """On the device of the potential."""
        return values.to(self.batch.pos.device)

    def moved(self, pos: Tensor, cell: Tensor | None = None) -> Structures:
        """Copies at other positions ``[K, A, 3]``, in other cells ``[K, 3, 3]``."""
        count, atoms = pos.shape[:2]
        index = torch.arange(count, device=pos.device)
        old = self.batch
        assert old.cell is not None
        assert old.shifts is not None
        return Structures(
            z=old.z.repeat(count),
            pos=pos.reshape(-1, 3),
            edge_index=(old.edge_index[:, None] + atoms * index[:, None]).reshape(2, -1),
            batch=index.repeat_interleave(atoms),
            num_graphs=count,
            cell=old.cell.expand(count, 3, 3) if cell is None else cell,
            shifts=old.shifts.repeat(count, 1),
        )

    def difference(self, other: Structures, matrix: Tensor, order: Tensor | None = None) -> list[tuple[float, float]]:
        """Of energy and forces from those of the same atoms, turned by a matrix and in another order."""
        found = self.ask(other, "energies", "forces")
        copies = len(other.z) // len(self.batch.z)
        expected = (self.found["forces"] if order is None else self.found["forces"][order]) @ matrix.T
        energy = float((found["energies"].sum() - copies * self.found["energies"].sum()).abs())
        forces = float((found["forces"] - expected.repeat(copies, 1)).abs().max())
        return [(energy, copies * self.energy_rounding), (forces, self.force_rounding)]


def check_potential(
    potential: Potential,
    structures: Sequence[Atoms] | None = None,
    *,
    rattle: float = 0.02,
    step: float = 1e-3,
    seed: int = 0,
) -> PotentialReport:
    """Measure what every potential must satisfy, in float64.

    Forces, virials and Hessian are compared with central differences; sums of forces and of torques, the symmetry of
    the Hessian, rotation, inversion, translation, permutation, and copies with their laws. At the cutoff an atom that
    leaves must change neither energy nor slope nor curvature. Errors of differences are bounded by comparing steps.

    Args:
        potential: Copied and converted to float64.
        structures: Some tens of atoms each; by default a molecule and a crystal of the potential's species.
        rattle: Angstrom by which atoms are displaced first, as forces of a perfect crystal are zero.
        step: Of differences, in Angstrom and as strain.
        seed: Of displacements and directions.

    Returns:
        A row for each property with the largest deviation, measured by its bound, over all structures.

    Raises:
        ConfigError, DataError, IndexRangeError: Arguments or structures that cannot be used.

    Source:
        Richardson 1911, doi:10.1098/rsta.1911.0009, for differences whose error is known.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> report = check_potential(Potential(ToyNetwork(2), species=[1, 8]))
        >>> report.ok, [row.name for row in report.rows][:2]
        (True, ['forces are slopes of the energy', 'virials are slopes by strain'])
    """
    check_type("potential", potential, Potential, "a Potential", "Load one with load_potential(path).")
    amplitude = check_number("rattle", rattle, at_least=0, at_most=0.5, unit=" of Angstrom", fix="0.02 is usual.")
    width = check_number("step", step, above=0, at_most=_MARGIN / 16, unit=" of Angstrom", fix="0.001 is usual.")
    generator = torch.Generator("cpu").manual_seed(check_seed("seed", seed))
    exact = copy.deepcopy(potential).double().eval()
    if structures is None:
        structures = example_structures(exact.species, exact.cutoff, seed)
    listed = check_items("structures", structures, "a list of ase.Atoms, or None", "Put a single one into a list.")
    if not listed:
        raise ConfigError("structures must be at least one, got none. Leave them out for examples.")
    worst: dict[str, PotentialRow] = {}
    for number, atoms in enumerate(listed):
        shaken = check_atoms(atoms, exact.species, f"structures[{number}]").copy()
        shaken.set_constraint()
        shaken.positions += amplitude * (
            2 * torch.rand(len(shaken), 3, generator=generator, device="cpu").double().numpy() - 1
        )
        case = _Case.of(exact, shaken, generator)
        rows = [PotentialRow(name, *pair, unit) for check in CHECKS for name, pair, unit in check(case, width)]
        for row in rows:
            before = worst.get(row.name)
            if before is None or not row.measured * before.bound <= before.measured * row.bound:
                worst[row.name] = row
    rows = [PotentialRow(name, *pair, unit) for name, pair, unit in cutoff_rows(exact, generator, EPS * ROUNDINGS)]
    return PotentialReport((*worst.values(), *rows))


# ---- what is checked of every structure ----------------------------------------------------------------------------

Found = list[tuple[str, tuple[float, float], str]]
_STEPS = torch.tensor([1.0, -1.0, 2.0, -2.0, 4.0, -4.0], dtype=torch.float64, device="cpu")
_EYE = torch.eye(3, dtype=torch.float64, device="cpu")


def _slope(values: Tensor, step: float) -> tuple[Tensor, float]:
    """The derivative of ``[6, ...]`` values at the steps above, and a bound of its error.

    Differences at h, 2 h and 4 h give two values, with errors c h^4 and 16 c h^4 where all is smooth. Where an edge
    crosses the cutoff a third derivative jumps: errors are then of the size of their distance, and may cancel in it.
    """
    once, twice, four = (values[i] - values[i + 1] for i in (0, 2, 4))
    once, twice, four = once / (2 * step), twice / (4 * step), four / (8 * step)
    fine, coarse = (4 * once - twice) / 3, (4 * twice - four) / 3
    return fine, 10 * float((fine - coarse).abs().max())


def _derivatives(case: _Case, step: float) -> Found:
    """Along random directions, in which a wrong component shows with certainty."""
    pos, cell = case.batch.pos, case.batch.cell
    assert cell is not None
    steps, eye = case.place(_STEPS)[:, None, None], case.place(_EYE)
    rows: dict[str, list[tuple[float, float]]] = {"forces": [], "virials": [], "hessian": [], "symmetry": []}
    for _ in range(_DIRECTIONS):
        direction = case.draw(*pos.shape)
        other = case.draw(*pos.shape)
        at = case.ask(case.moved(pos + step * steps * direction), "energies", "forces")
        slope, error = _slope(at["energies"].view(6, -1).sum(1), step)
        slack = error + case.energy_rounding / step
        rows["forces"].append((float((slope + (case.found["forces"] * direction).sum()).abs()), slack))

        curves, error = _slope(at["forces"].view(6, *pos.shape), step)
        product, partner = _hessian_products(case, direction, other)
        rows["hessian"].append((float((curves + product).abs().max()), error + case.force_rounding / step))
        size = float(product.abs().max() + partner.abs().max() + case.potential.scales.max())
        asymmetry = float(((product * other).sum() - (partner * direction).sum()).abs())
        rows["symmetry"].append((asymmetry, EPS * ROUNDINGS * size * pos.numel()))

        strain = case.draw(3, 3)
        strain = 0.5 * (strain + strain.T)
        stretch = eye + 0.25 * step * steps * strain
        at = case.ask(case.moved(pos @ stretch, cell @ stretch), "energies")
        slope, error = _slope(at["energies"].view(6, -1).sum(1), 0.25 * step)
        slack = error + 4 * case.energy_rounding / step
        rows["virials"].append((float((slope + (case.found["virials"][0] * strain).sum()).abs()), slack))
    return [
        ("forces are slopes of the energy", _worst(rows["forces"]), "eV/A"),
        ("virials are slopes by strain", _worst(rows["virials"]), "eV"),
        ("the Hessian is the slope of forces", _worst(rows["hessian"]), "eV/A^2"),
        ("the Hessian is symmetric", _worst(rows["symmetry"]), "eV/A^2"),
    ]


def _hessian_products(case: _Case, *directions: Tensor) -> list[Tensor]:
    """The Hessian times each direction, by differentiating forces."""
    pos = case.batch.pos.detach().requires_grad_()
    forces = case.potential(case.batch._replace(pos=pos), ("forces",), create_graph=True)["forces"]
    return [
        -torch.autograd.grad((forces * direction).sum(), pos, retain_graph=True, materialize_grads=True)[0]
        for direction in directions
    ]


def _worst(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """The largest deviation and bound of several directions; one that is not a number is the largest."""
    deviations = [deviation for deviation, _ in pairs]
    lost = [deviation for deviation in deviations if deviation != deviation]
    return (lost or [max(deviations)])[0], max(bound for _, bound in pairs)


def _sums(case: _Case, step: float) -> Found:
    forces, pos = case.found["forces"], case.batch.pos
    slack = len(pos) * case.force_rounding
    rows: Found = [("forces sum to zero", (float(forces.sum(0).abs().max()), slack), "eV/A")]
    if not case.atoms.pbc.any():  # a cell breaks the symmetry that conserves the angular momentum
        torques = float(torch.linalg.cross(pos, forces).sum(0).abs().max())
        rows.append(("torques sum to zero", (torques, slack * float(pos.abs().max() + 1)), "eV"))
    return rows


def _symmetries(case: _Case, step: float) -> Found:
    """Rotation, inversion, another place, another order of atoms and edges."""
    old, eye = case.batch, case.place(_EYE)
    assert old.cell is not None
    assert old.shifts is not None
    changes: dict[str, tuple[Structures, Tensor, Tensor | None]] = {}
    turn = case.place(random_orthogonal(int(1000 * case.draw(1).abs())))
    for name, matrix in (("rotation", turn), ("inversion", -eye)):
        changes[name] = (old._replace(pos=old.pos @ matrix.T, cell=old.cell @ matrix.T), matrix, None)
    elsewhere = case.atoms.copy()
    elsewhere.positions += 3 * case.draw(3).cpu().numpy()
    elsewhere.wrap()
    lists = NeighborLists(case.potential.cutoff + _MARGIN)
    shift = (elsewhere.positions - case.atoms.positions)[0]
    placed = collate(case.potential, [elsewhere], [lists(elsewhere)])
    changes["translation"] = (placed._replace(pos=placed.pos + case.place(torch.from_numpy(shift))), eye, None)
    order = torch.randperm(len(old.z), generator=case.generator)
    edges = torch.randperm(old.edge_index.shape[1], generator=case.generator)
    permuted = old._replace(
        z=old.z[order],
        pos=old.pos[order],
        edge_index=order.argsort()[old.edge_index][:, edges],
        shifts=old.shifts[edges],
    )
    changes["permutation"] = (permuted, eye, order)
    parts = (("energy", "eV"), ("forces", "eV/A"))
    return [
        (f"{name}: {part}", pair, unit)
        for name, change in changes.items()
        for (part, unit), pair in zip(parts, case.difference(*change), strict=True)
    ]


def _copies(case: _Case, step: float) -> Found:
    """Two structures far apart, or two cells of a crystal, have twice the energy and the same forces."""
    atoms, margin = case.atoms, case.potential.cutoff + _MARGIN
    if atoms.pbc.any():
        repeats = [1, 1, 1]
        repeats[int(atoms.pbc.argmax())] = 2
        double = atoms.repeat(repeats)
    else:
        double, other = atoms.copy(), atoms.copy()
        other.positions += [4 * margin + float(atoms.positions.max() - atoms.positions.min()), 0, 0]
        double.extend(other)
    pairs = case.difference(collate(case.potential, [double], [NeighborLists(margin)(double)]), case.place(_EYE))
    return [("two copies: energy", pairs[0], "eV"), ("two copies: forces", pairs[1], "eV/A")]


def _beyond(case: _Case, step: float) -> Found:
    """Edges that are longer than the cutoff change nothing."""
    batches = [
        collate(case.potential, [case.atoms], [NeighborLists(case.potential.cutoff + more)(case.atoms)])
        for more in (0.0, 1.0)
    ]
    energies = [case.ask(batch)["energy"] for batch in batches]
    pair = (float((energies[1] - energies[0]).abs()), case.energy_rounding)
    return [("edges beyond the cutoff count nothing", pair, "eV")]


CHECKS: tuple[Callable[[_Case, float], Found], ...] = (_derivatives, _sums, _symmetries, _copies, _beyond)
