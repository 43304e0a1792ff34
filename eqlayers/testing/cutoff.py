"""Discontinuities of energies, dipoles and polarizabilities, and of their derivatives, at the cutoff."""

from __future__ import annotations

import torch
from torch import Tensor

from ..models import Potential, Structures

_MOST = 16  # most pairs of species
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


def cutoff_rows(
    potential: Potential, generator: torch.Generator, rounding: float
) -> list[tuple[str, tuple[float, float], str]]:
    """Measure jumps at the cutoff when one atom leaves another, in pairs and with a third atom.

    Each property and its two derivatives are computed at four distances just within the cutoff and extrapolated to it,
    where they must equal the values without the edge. Second and third differences bound the error of extrapolation.

    Returns:
        Name, deviation with its bound, and unit; the largest deviation relative to its bound over pairs of species.

    Example:
        >>> from eqlayers.testing import ToyNetwork
        >>> potential = Potential(ToyNetwork(1), species=[29]).double().eval()
        >>> [name for name, (jump, bound), unit in cutoff_rows(potential, torch.Generator(), 1e-12) if jump <= bound]
        ['energy at the cutoff', 'slope at the cutoff', 'curvature at the cutoff']
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
    """Value, first and second derivative of each property by distance of the leaving atom, ``[3, P, 5]``.

    The first four distances are near the cutoff; the last entry is without the edge.
    """
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
            slope = -values["forces"] if name == "energy" else _gradient(value, flat)
            slope = slope.view(-1, size, 3)[:, 0, 2]
            curvature = _gradient(slope, flat).view(-1, size, 3)[:, 0, 2]
            by_property[name] = torch.stack([value, slope, curvature]).detach().view(3, count, 5).cpu()
    return by_property


def _gradient(values: Tensor, pos: Tensor) -> Tensor:
    """Gradient of the sum of values by positions; 0 without dependence on positions."""
    if not values.requires_grad:
        return torch.zeros_like(pos)
    return torch.autograd.grad(values.sum(), pos, create_graph=True, materialize_grads=True, allow_unused=True)[0]
