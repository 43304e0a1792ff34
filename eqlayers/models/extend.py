"""Add species to a trained potential without a change of its predictions for known species."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..atoms.elements import by_element, read_species, symbols_of
from ..core.checks import check_number, check_type, got
from ..core.errors import ConfigError
from ..core.graph import Graph
from .compression import without_tables
from .potential import Potential
from .saving import build_potential, classes_of, describe_potential

_ROUNDINGS = 2**12  # tolerance in eps of an atomic energy: sums over hundreds of edges and channels in several layers
_SURE = 0.05  # largest relative tolerance: in half precision, a wrong factor of the species count must show


def extend_potential(
    potential: Potential, species: Sequence[int | str], shifts: Mapping[Any, float] | None = None
) -> Potential:
    """A copy of a potential with more species, for fine-tuning.

    Energies and forces of structures of known species are unchanged up to rounding. Weights of a new species are the
    mean over the known ones, so that it starts as an average atom; its scale is the mean scale. What a network computes
    from atomic numbers, such as covalent radii, follows the new species.

    The network must keep its arguments in ``options``, among them ``species``, and have axes of the number of species
    wherever weights depend on it. A network whose results depend on the number of species in another way needs a
    method ``after_extension(before)`` that compensates for it, called with the former number of species, such as the
    one of :class:`eqlayers.models.MACE`. Energies of a cluster of atoms are compared before and after.

    Args:
        potential: The trained potential; it is not changed.
        species: Symbols or atomic numbers; those that the potential lacks are appended to its own.
        shifts: In eV, by symbol or atomic number, of new species; 0 for those that are left out.

    Returns:
        A potential with the species, dtype, device and mode of the old one, without tables of its radial networks.

    Raises:
        ConfigError: An unknown species, the shift of a known one, or a network that cannot be extended.

    Example:
        >>> from eqlayers.models import NequIP
        >>> water = Potential(NequIP([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=2), [1, 8], {1: -13.6, 8: -2041.8})
        >>> more = extend_potential(water, [8, 16], shifts={16: -10831.0})
        >>> more.species, more.shifts.tolist(), more.network.embedding.weight.shape
        ((1, 8, 16), [-13.6, -2041.8, -10831.0], torch.Size([3, 4]))
    """
    check_type("potential", potential, Potential, "a Potential", "Load one with load_potential(path).")
    new = [z for z in read_species(species) if z not in potential.species]
    added = by_element("shifts", shifts or {}, "shift in eV")
    if not added.keys() <= set(new):
        raise ConfigError(
            f"shifts must be of the new species {symbols_of(new) or 'none'}, got {symbols_of(added)}. Use "
            "set_statistics for others."
        )
    potential = without_tables(potential)
    with torch.random.fork_rng(devices=[]):  # initial weights are overwritten
        described = with_species(describe_potential(potential), [*potential.species, *new])
        wider = build_potential(described, classes_of(potential))
    take_weights(wider, potential)
    for z, shift in added.items():
        wider.shifts[wider.species.index(z)] = check_number(
            f"the shift of {symbols_of([z])}", shift, fix="Look for NaN."
        )
    return wider


def with_species(description: Mapping[str, Any], species: Sequence[int]) -> dict[str, Any]:
    """A description of a potential (see :func:`describe_potential`) with its species replaced."""
    network, old = description["network"], list(description["species"])
    if list(species) == old:
        return dict(description)
    options = network["init_args"]
    if "species" not in options or list(read_species(options["species"])) != old:
        raise ConfigError(
            f"the network must keep the argument `species` of the potential, {old}, in its options, got "
            f"{got(options.get('species'))} of {network['class_path']}. Let its __init__ take species."
        )
    changed = {"class_path": network["class_path"], "init_args": {**options, "species": list(species)}}
    return {**description, "network": changed, "species": list(species)}


@torch.no_grad()
def take_weights(potential: Potential, other: Potential) -> None:
    """Copy weights, dtype, device and mode of ``other`` to ``potential``, which has more species."""
    potential.to(device=other.shifts.device, dtype=other.dtype).train(other.training)
    mine, theirs, learned = potential.state_dict(), other.state_dict(), dict(potential.named_parameters())
    strange = sorted(mine.keys() ^ theirs.keys())
    if strange:
        side = "the network to be trained" if strange[0] in mine else "the trained one"
        raise _differ(strange[0], f"one in {side} alone")
    before, after = len(other.species), len(potential.species)
    for name, value in theirs.items():
        if name != "species_index":  # it follows from the species
            mine[name] = _rows(name, mine[name], value, before, after, name in learned or name == "scales")
    potential.load_state_dict(mine)
    for name, parameter in other.named_parameters():
        learned[name].requires_grad_(parameter.requires_grad)
    compensate = getattr(potential.network, "after_extension", None)
    if compensate is not None and after > before:
        compensate(before)
    _compare(potential, other)


def _rows(name: str, mine: Tensor, theirs: Tensor, before: int, after: int, averaged: bool) -> Tensor:
    """Append rows of new species to rows of known ones: the mean of the known (``averaged``), or rows of ``mine``."""
    if mine.shape == theirs.shape:
        return theirs
    axes = [axis for axis in range(mine.ndim) if mine.ndim == theirs.ndim and mine.shape[axis] != theirs.shape[axis]]
    if len(axes) != 1 or (theirs.shape[axes[0]], mine.shape[axes[0]]) != (before, after):
        raise _differ(name, f"{list(theirs.shape)} with {before} species and {list(mine.shape)} with {after}")
    (axis,) = axes
    if averaged:
        new = theirs.mean(axis, keepdim=True).repeat_interleave(after - before, axis)
    else:
        new = mine.narrow(axis, before, after - before).to(theirs)
    return torch.cat([theirs, new], axis)


def _differ(name: str, difference: str) -> ConfigError:
    return ConfigError(
        f"parameters must have equal shapes but for one axis, the species, got {name}, {difference}. Use the "
        "architecture of the trained potential, and one row of weights for each species."
    )


def _compare(potential: Potential, other: Potential) -> None:
    """Raise unless both networks give the same energies of a random cluster of all known species."""
    generator, count = torch.Generator().manual_seed(0), 2 * len(other.species)
    side = int(count ** (1 / 3)) + 2
    grid = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 3)[:count]
    pos = 0.45 * other.cutoff * (grid + 0.2 * torch.rand(count, 3, generator=generator, dtype=torch.float64))
    pairs = (torch.cdist(pos, pos) < other.cutoff).fill_diagonal_(False).nonzero().T.contiguous()
    atom_types, device = torch.arange(len(other.species)).repeat(2), other.shifts.device
    numbers = []
    for model in (without_tables(other), without_tables(potential)):
        graph = Graph(pairs.to(device), count)
        numbers.append(model.network(atom_types.to(device), model.geometry(pos.to(device, model.dtype), graph), graph))
    size, error = float(numbers[0].abs().max()), float((numbers[1] - numbers[0]).abs().max())
    if not error <= min(_ROUNDINGS * torch.finfo(other.dtype).eps, _SURE) * (1 + size):
        raise ConfigError(
            f"energies of known species must not change when species are added, got a change of {error:.3g} beside "
            f"{size:.3g} in {type(other.network).__name__}. Give the network a method after_extension(before) that "
            "compensates for the number of species."
        )
