"""Check laws of potentials: forces are gradients, symmetries of space hold, and energies are smooth at the cutoff."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.checks import check_items, check_number, check_seed, check_type
from ..core.errors import ConfigError
from ..models import Potential, Structures
from ..models.structures import NeighborLists, check_atoms, collate, has_volume
from .derivatives import gradients
from .equivariance import random_orthogonal
from .networks import example_structures
from .potential_case import EPS, EYE, MARGIN, ROUNDINGS, STEPS, Case, Deviations, slope_of, worst_of

if TYPE_CHECKING:
    from ase import Atoms


_MOST = 16  # most pairs of species
_DIRECTIONS = 3
# weights of values at 1, 2, 3 and 4 steps: cubic extrapolation to 0, and second and third differences
_EXTRAPOLATED = torch.tensor([4.0, -6.0, 4.0, -1.0], dtype=torch.float64, device="cpu")
_SECOND = torch.tensor([1.0, -2.0, 1.0, 0.0], dtype=torch.float64, device="cpu")
_THIRD = torch.tensor([-1.0, 3.0, -3.0, 1.0], dtype=torch.float64, device="cpu")
#: Property -> names and units of its value, first and second derivative.
_PARTS = {
    "energy": (("energy", "eV"), ("slope", "eV/A"), ("curvature", "eV/A^2")),
    "dipole": (("dipole", "e A"), ("slope of the dipole", "e"), ("curvature of the dipole", "e/A")),
    "polarizability": (
        ("polarizability", "A^3"),
        ("slope of the polarizability", "A^2"),
        ("curvature of the polarizability", "A"),
    ),
}
# generic directions on which vectors and matrices are projected
_ALONG = {"dipole": [0.5, -0.3, 0.8], "polarizability": [[0.7, -0.2, 0.3], [-0.2, -0.4, 0.5], [0.3, 0.5, 0.9]]}


def cutoff_rows(potential: Potential, generator: torch.Generator, rounding: float) -> Deviations:
    """Name, deviation with bound, and unit of jumps when one atom leaves another, in pairs and with a third atom.

    Each property and its two derivatives are computed at four distances just within the cutoff and extrapolated to it,
    where they must equal the values without the edge. Second and third differences bound the error of extrapolation.
    The deviation is the largest relative to its bound over pairs of species.
    """
    pairs = torch.cartesian_prod(torch.arange(len(potential.species)), torch.arange(len(potential.species))).view(-1, 2)
    pairs = pairs[torch.randperm(len(pairs), generator=generator)[:_MOST]]
    species = torch.tensor(potential.species)[pairs]  # [P, 2], leaving and staying atom
    worst: dict[str, tuple[float, float]] = {}
    for others in (1, 2):
        for name, by_distance in _near_cutoff(potential, species, others).items():
            values = by_distance[:, :, :4] - by_distance[:, :, 4:]  # contribution of the edge
            jumps, second, third = (values @ weights for weights in (_EXTRAPOLATED, _SECOND, _THIRD))
            size = potential.scales.max() if name == "energy" else potential.split.get_buffer(f"{name}_scale")
            scale = float(size) + by_distance[:, :, :4].abs().amax(dim=2)
            shifts = 8 * torch.finfo(torch.float64).eps * float(potential.shifts.abs().max()) * (name == "energy")
            bounds = second.abs() + third.abs() + rounding * scale + shifts
            for (part, _), jump, bound in zip(_PARTS[name], jumps.abs(), bounds, strict=True):
                first = int((jump / bound).nan_to_num(nan=torch.inf).argmax())
                pair = (float(jump[first]), float(bound[first]))
                if part not in worst or not pair[0] * worst[part][1] <= worst[part][0] * pair[1]:
                    worst[part] = pair
    parts = [pair for name in potential.properties for pair in _PARTS[name]]
    return [(f"{part} at the cutoff", worst[part], unit) for part, unit in parts]


def _near_cutoff(potential: Potential, species: Tensor, others: int) -> dict[str, Tensor]:
    """Each property and two derivatives by the distance of the leaving atom, ``[3, P, 5]``; last without the edge."""
    cutoff, count = potential.cutoff, len(species)
    distances = cutoff * (1 - torch.tensor([1e-4, 2e-4, 3e-4, 4e-4, 1e-4], dtype=torch.float64))
    size = 1 + others
    pos = torch.zeros(count, 5, size, 3, dtype=torch.float64)
    pos[:, :, 0, 2] = distances
    if others == 2:  # beyond the cutoff of the leaving atom
        pos[:, :, 2] = 0.4 * cutoff * torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64)
    z = torch.cat([species, species[:, 1:].expand(-1, others - 1)], dim=1)[:, None].expand(-1, 5, -1)
    bonds = torch.tensor([[0, 1], [1, 0], *([[1, 2], [2, 1]] if others == 2 else [])])
    starts = size * torch.arange(5 * count).view(count, 5)
    edge_lists = [bonds if i < 4 else bonds[2:] for i in range(5)]
    edges = [edge_lists[i] + start for row in starts for i, start in enumerate(row)]
    device = potential.shifts.device
    flat = pos.reshape(-1, 3).to(device).requires_grad_()
    batch = torch.arange(5 * count).repeat_interleave(size).to(device)
    structures = Structures(z.reshape(-1).to(device), flat, torch.cat(edges).T.to(device), batch, 5 * count)
    by_property = {}
    with torch.enable_grad():
        outputs = ["forces" if name == "energy" else name for name in potential.properties]
        values = potential(structures, outputs, create_graph=True)
        for name in potential.properties:
            value = values[name]
            if name != "energy":  # projection on a direction
                value = value.flatten(1) @ value.new_tensor(_ALONG[name]).flatten()
            # structures do not interact, so the gradient of the sum has the gradients of all
            slope = -values["forces"] if name == "energy" else gradients(value.sum(), [flat])[0]
            slope = slope.view(-1, size, 3)[:, 0, 2]
            curvature = gradients(slope.sum(), [flat])[0].view(-1, size, 3)[:, 0, 2]
            by_property[name] = torch.stack([value, slope, curvature]).detach().view(3, count, 5).cpu()
    return by_property


@dataclass(frozen=True)
class PotentialRow:
    """One law: the measured deviation, the bound that rounding explains, and their unit."""

    name: str
    measured: float
    bound: float
    unit: str

    @property
    def ok(self) -> bool:
        """Whether the deviation is within its bound; False for NaN."""
        return self.measured <= self.bound


@dataclass(frozen=True)
class PotentialReport:
    """Rows of all checked laws; ``str`` gives a printable table."""

    rows: tuple[PotentialRow, ...]

    @property
    def failures(self) -> tuple[PotentialRow, ...]:
        """Rows with a deviation above its bound."""
        return tuple(row for row in self.rows if not row.ok)

    @property
    def ok(self) -> bool:
        """Whether all deviations are within their bounds."""
        return not self.failures

    def __str__(self) -> str:
        width = max((len(row.name) for row in self.rows), default=0)
        return "\n".join(
            f"{'ok  ' if row.ok else 'FAIL'} {row.name:{width}}  {row.measured:.1e} of {row.bound:.1e} {row.unit}"
            for row in self.rows
        )


def check_potential(
    potential: Potential,
    structures: Sequence[Atoms] | None = None,
    *,
    rattle: float = 0.02,
    step: float = 1e-3,
    seed: int = 0,
) -> PotentialReport:
    """Check the laws that every potential must satisfy, in float64.

    Forces, virials and Hessian are compared with central differences, whose errors are bounded by several steps.
    Forces and torques must sum to zero, the Hessian must be symmetric, and predictions must be equivariant under
    rotation, inversion, translation and permutation, and extensive. Energy and its first two derivatives must be
    continuous when an atom crosses the cutoff. The energy of a lone atom must be its shift; that row has no bound
    without ``subtract_isolated``, as in models of mace-torch. Dipoles and polarizabilities are checked alike, and Born
    charges are compared with differences of dipoles.

    Args:
        potential: Potential to check; a copy is converted to float64.
        structures: Structures of some tens of atoms; by default a molecule and a crystal of the potential's species.
        rattle: Largest random displacement of atoms in Angstrom, as forces of a perfect crystal are zero.
        step: Step of differences, in Angstrom and as strain.
        seed: Seed of displacements and directions.

    Returns:
        A row for each law, with the largest deviation relative to its bound over all structures.

    Raises:
        ConfigError, DataError, IndexRangeError: An argument or structure is invalid.

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
    width = check_number("step", step, above=0, at_most=MARGIN / 16, unit=" of Angstrom", fix="0.001 is usual.")
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
        NeighborLists(exact.cutoff)(shaken, f"structures[{number}]")  # raises if atoms coincide before displacements
        shaken.set_constraint()
        drawn = torch.rand(len(shaken), 3, generator=generator, device="cpu").double().numpy()
        shaken.positions += amplitude * (2 * drawn - 1)
        case = Case.of(exact, shaken, generator)
        checks = [check for needed, check in CHECKS if needed is None or needed in exact.properties]
        for row in (PotentialRow(name, *pair, unit) for check in checks for name, pair, unit in check(case, width)):
            before = worst.get(row.name)
            if before is None or not row.measured * before.bound <= before.measured * row.bound:
                worst[row.name] = row
    fading = cutoff_rows(exact, generator, EPS * ROUNDINGS)
    lone = _lone_atoms(exact) if "energy" in exact.properties else []
    return PotentialReport((*worst.values(), *(PotentialRow(name, *pair, unit) for name, pair, unit in lone + fading)))


def _derivatives(case: Case, step: float) -> Deviations:
    """Compare forces, virials and Hessian with differences along random directions."""
    pos, cell = case.batch.pos, case.batch.cell
    assert cell is not None
    steps, eye = case.to_device(STEPS)[:, None, None], case.to_device(EYE)
    rows: dict[str, list[tuple[float, float]]] = {"forces": [], "virials": [], "hessian": [], "symmetry": []}
    for _ in range(_DIRECTIONS):
        direction = case.draw(*pos.shape)
        other = case.draw(*pos.shape)
        at = case.predict(case.moved(pos + step * steps * direction), "energies", "forces")
        slope, error = slope_of(at["energies"].view(6, -1).sum(1), step)
        slack = error + case.energy_rounding / step
        rows["forces"].append((float((slope + (case.predictions["forces"] * direction).sum()).abs()), slack))

        curves, error = slope_of(at["forces"].view(6, *pos.shape), step)
        product, partner = _hessian_products(case, direction, other)
        rows["hessian"].append((float((curves + product).abs().max()), error + case.force_rounding / step))
        size = float(product.abs().max() + partner.abs().max() + case.potential.scales.max())
        asymmetry = float(((product * other).sum() - (partner * direction).sum()).abs())
        rows["symmetry"].append((asymmetry, EPS * ROUNDINGS * size * pos.numel()))

        strain = case.draw(3, 3)
        strain = 0.5 * (strain + strain.T)
        stretch = eye + 0.25 * step * steps * strain
        at = case.predict(case.moved(pos @ stretch, cell @ stretch), "energies")
        slope, error = slope_of(at["energies"].view(6, -1).sum(1), 0.25 * step)
        slack = error + 4 * case.energy_rounding / step
        rows["virials"].append((float((slope + (case.predictions["virials"][0] * strain).sum()).abs()), slack))
    return [
        ("forces are slopes of the energy", worst_of(rows["forces"]), "eV/A"),
        ("virials are slopes by strain", worst_of(rows["virials"]), "eV"),
        *_stress(case),
        ("the Hessian is the slope of forces", worst_of(rows["hessian"]), "eV/A^2"),
        ("the Hessian is symmetric", worst_of(rows["symmetry"]), "eV/A^2"),
    ]


def _stress(case: Case) -> Deviations:
    """Compare the stress with virials over the volume, if the structure has one."""
    if not has_volume(case.atoms):
        return []
    volume, virials = case.atoms.get_volume(), case.predictions["virials"][0]
    stress = case.potential(case.batch, ("stress",), create_graph=False)["stress"][0]
    bound = EPS * ROUNDINGS * float(virials.abs().max() + case.potential.scales.max()) / volume
    return [("stress is -virials / volume", (float((stress + virials / volume).abs().max()), bound), "eV/A^3")]


def _hessian_products(case: Case, *directions: Tensor) -> list[Tensor]:
    """Products of the Hessian with directions, by differentiation of forces."""
    pos = case.batch.pos.detach().requires_grad_()
    forces = case.potential(case.batch._replace(pos=pos), ("forces",), create_graph=True)["forces"]
    sums = ((forces * direction).sum() for direction in directions)
    return [-torch.autograd.grad(one, pos, retain_graph=True, materialize_grads=True)[0] for one in sums]


def _sums(case: Case, step: float) -> Deviations:
    """Check that forces, and torques without periodic axes, sum to zero."""
    forces, pos = case.predictions["forces"], case.batch.pos
    slack = len(pos) * case.force_rounding
    rows: Deviations = [("forces sum to zero", (float(forces.sum(0).abs().max()), slack), "eV/A")]
    if not case.atoms.pbc.any():  # a cell breaks rotational symmetry
        torques = float(torch.linalg.cross(pos, forces).sum(0).abs().max())
        rows.append(("torques sum to zero", (torques, slack * float(pos.abs().max() + 1)), "eV"))
    return rows


def _symmetries(case: Case, step: float) -> Deviations:
    """Check equivariance under rotation, inversion, translation, and permutation of atoms and edges."""
    old, eye = case.batch, case.to_device(EYE)
    assert old.cell is not None
    assert old.shifts is not None
    changes: dict[str, tuple[Structures, Tensor, Tensor | None]] = {}
    rotation = case.to_device(random_orthogonal(int(1000 * case.draw(1).abs())))
    for name, matrix in (("rotation", rotation), ("inversion", -eye)):
        changes[name] = (old._replace(pos=old.pos @ matrix.T, cell=old.cell @ matrix.T), matrix, None)
    translated = case.atoms.copy()
    translated.positions += 3 * case.draw(3).cpu().numpy()
    translated.wrap()
    lists = NeighborLists(case.potential.cutoff + MARGIN)
    shift = (translated.positions - case.atoms.positions)[0]
    translated_batch = collate(case.potential, [translated], [lists(translated)])
    pos = translated_batch.pos + case.to_device(torch.from_numpy(shift))
    changes["translation"] = (translated_batch._replace(pos=pos), eye, None)
    order = case.to_device(torch.randperm(len(old.z), generator=case.generator))
    edges = case.to_device(torch.randperm(old.edge_index.shape[1], generator=case.generator))
    index, shifts = order.argsort()[old.edge_index][:, edges], old.shifts[edges]
    permuted = old._replace(z=old.z[order], pos=old.pos[order], edge_index=index, shifts=shifts, mirrored=False)
    changes["permutation"] = (permuted, eye, order)
    rows = {name: case.difference(*change) for name, change in changes.items()}
    return [(f"{name}: {part}", pair, unit) for name, of_change in rows.items() for part, pair, unit in of_change]


def _copies(case: Case, step: float) -> Deviations:
    """Check extensivity: two distant copies, or two cells of a crystal, have twice the energy and equal forces."""
    atoms, margin = case.atoms, case.potential.cutoff + MARGIN
    if atoms.pbc.any():
        repeats = [1, 1, 1]
        repeats[int(atoms.pbc.argmax())] = 2
        double = atoms.repeat(repeats)
    else:
        double, other = atoms.copy(), atoms.copy()
        other.positions += [4 * margin + float(atoms.positions.max() - atoms.positions.min()), 0, 0]
        double.extend(other)
    rows = case.difference(collate(case.potential, [double], [NeighborLists(margin)(double)]), case.to_device(EYE))
    return [(f"two copies: {part}", pair, unit) for part, pair, unit in rows]


def _beyond(case: Case, step: float) -> Deviations:
    """Check that edges longer than the cutoff do not change predictions."""
    wide = NeighborLists(case.potential.cutoff + 1.0)(case.atoms)
    rows = case.difference(collate(case.potential, [case.atoms], [wide]), case.to_device(EYE))
    return [(f"edges beyond the cutoff: {part}", pair, unit) for part, pair, unit in rows]


def _born_charges(case: Case, step: float) -> Deviations:
    """Compare Born charges with differences of the dipole, and check that they sum to zero."""
    charges = case.potential(case.batch, ("born_charges",), create_graph=False)["born_charges"]
    slack = case.rounding("dipole") / step
    pairs = []
    for _ in range(_DIRECTIONS):
        direction = case.draw(*case.batch.pos.shape)
        moved = case.moved(case.batch.pos + step * case.to_device(STEPS)[:, None, None] * direction)
        slope, error = slope_of(case.predict(moved, "dipole")["dipole"], step)
        product = torch.einsum("abc,ac->b", charges, direction)
        pairs.append((float((slope - product).abs().max()), error + slack))
    total = EPS * ROUNDINGS * len(charges) * float(charges.abs().max() + 1)
    return [
        ("Born charges are slopes of the dipole", worst_of(pairs), "e"),
        ("Born charges sum to zero", (float(charges.sum(0).abs().max()), total), "e"),
    ]


def _lone_atoms(potential: Potential) -> Deviations:
    """Check that the energy of a lone atom of each species is its shift, if isolated energies are subtracted."""
    z = torch.tensor(potential.species, device=potential.device)
    edges = z.new_empty(2, 0)
    pos, batch = potential.shifts.new_zeros(len(z), 3), torch.arange(len(z), device=z.device)
    energies = potential(Structures(z, pos, edges, batch, len(z)), ("energy",), create_graph=False)["energy"].detach()
    size = EPS * (ROUNDINGS * potential.scales + 4 * potential.shifts.abs())
    worst = int(((energies - potential.shifts).abs() / size).nan_to_num(nan=torch.inf).argmax())
    bound = float(size[worst]) if potential.subtract_isolated else float("inf")
    return [("energies of lone atoms are shifts", (float((energies - potential.shifts)[worst].abs()), bound), "eV")]


#: (required property or None, check) for each structure.
CHECKS: tuple[tuple[str | None, Callable[[Case, float], Deviations]], ...] = (
    ("energy", _derivatives),
    ("energy", _sums),
    (None, _symmetries),
    (None, _copies),
    (None, _beyond),
    ("dipole", _born_charges),
)
