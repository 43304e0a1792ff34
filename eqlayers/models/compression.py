"""Radial networks of whole models by frozen tables, for inference: `compress`, and `decompress` for the way back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..atoms.elements import read_species, symbols_of
from ..core.checks import check_integer, check_module, check_number, check_optional
from ..core.errors import ConfigError
from ..layers.radial.knots import MOST_KNOTS, Knots, cutoff_of, end_of
from ..layers.radial.module import ScalarNetwork
from ..layers.radial.radial_table import SAMPLES, TableError, fewest_knots, gradients, in_float64, largest, table_error
from ..layers.radial.tables import HoldsTables, TabledBasis, pair_codes, pair_ends, tabulate

Model = TypeVar("Model", bound=torch.nn.Module)
MOST_SPECIES = 12  # 78 pairs, each with a table of its own for every network


@dataclass(frozen=True)
class CompressionRow:
    """The result for one radial network.

    Attributes:
        name: Its path in the model.
        knots: Of its table.
        weights: Columns of its table.
        error: Largest errors of the table, in its dtype, against the network in float64.
        mebibytes: Of the table.
    """

    name: str
    knots: int
    weights: int
    error: TableError
    mebibytes: float


@dataclass(frozen=True)
class CompressionReport:
    """The report of :func:`compress`; ``str`` and ``print`` give a table.

    Attributes:
        rows: The radial networks.
    """

    rows: tuple[CompressionRow, ...]

    def __str__(self) -> str:
        """One line per network."""
        width = max((len(row.name) for row in self.rows), default=7)
        lines = [f"{'network':<{width}}  knots  weights  error of values  of slopes    MiB"]
        lines += [
            f"{row.name:<{width}}  {row.knots:>5}  {row.weights:>7}  {row.error.values:>15.1e}  "
            f"{row.error.slopes:>9.1e}  {row.mebibytes:>5.1f}"
            for row in self.rows
        ]
        return "\n".join([*lines, "errors are about these: sampled, relative to the largest weight and slope"])


def compress(
    model: torch.nn.Module,
    tolerance: float = 1e-4,
    knots: int | None = None,
    *,
    species: Sequence[int | str] | None = None,
) -> CompressionReport:
    """Hold the radial networks of a model in tables, so that inference does not run them.

    The model is changed in place; its weights stay, and :func:`decompress` is the way back. Files of
    :func:`eqlayers.models.save_potential` hold the tables. Forces and stress are derivatives of the interpolated
    energy, so energy is conserved in dynamics.

    Args:
        model: A potential or a network of this package, or a module that has one.
        tolerance: Largest error of weights and of their slopes, relative to the largest of a network; the number of
            knots follows from it.
        knots: The number of knots, in place of the tolerance.
        species: Elements that will occur, as symbols or atomic numbers, where tables are for pairs of species
            (``distance_transform``); all of the network if None.

    Returns:
        Errors and sizes; print it.

    Raises:
        ConfigError: The model has no radial networks that tables are known for, or a number is out of range.

    Example:
        >>> from eqlayers.models import NequIP, Potential
        >>> potential = Potential(NequIP([1, 8], hidden="4x0e + 4x1o", lmax=1, layers=2), species=[1, 8])
        >>> report = compress(potential)
        >>> [row.name for row in report.rows]
        ['network.steps.0.radial', 'network.steps.1.radial']
        >>> decompress(potential)
    """
    check_module("model", model)
    tolerance = check_number("tolerance", tolerance, above=0, fix="1e-4 is usual.")
    count = check_optional(lambda name, value: check_integer(name, value, 6, MOST_KNOTS), "knots", knots)
    owners = list(_owners(model))
    if not owners:
        raise ConfigError(
            f"model must have radial networks behind a BesselBasis, such as the potentials of this package, got "
            f"{type(model).__name__} without. Give a network's RadialTable to its convolutions by hand."
        )
    with gradients():
        frozen = [_freeze(name, owner, tolerance, count, species) for name, owner in owners]
    for (_, owner), (basis, tables, rows) in zip(owners, frozen, strict=True):  # all of them, or none
        owner.basis = basis
        _note(owner, rows[0].knots)
        for network, table in tables:
            network.table = table
    return CompressionReport(tuple(row for *_, rows in frozen for row in rows))


def decompress(model: torch.nn.Module) -> None:
    """Take the tables of :func:`compress` out of a model: its radial networks run at every edge again.

    The networks of a model that was built with ``knots=`` make tables in every call again.

    Args:
        model: The model; nothing happens to one without such tables.

    Example:
        A model and back, an example: :func:`compress`.
    """
    for _, owner in _owners(check_module("model", model)):
        if isinstance(owner.basis, TabledBasis) and _is_frozen(owner):
            _set_knots(owner, None if owner.basis.live is None else int(owner.basis.live))


def set_knots(model: torch.nn.Module, knots: int | None) -> None:
    """Let radial networks run at a number of knots, None for every edge; tables of :func:`compress` are removed."""
    for _, owner in _owners(model):
        _set_knots(owner, knots)


def _set_knots(owner: Any, knots: int | None) -> None:
    for _, network in _networks(owner):
        network.table = None
    basis = _basis(owner)
    owner.basis = basis if knots is None else TabledBasis(basis, knots).to(next(owner.parameters()).device)
    _note(owner, knots)


def without_tables(model: Model) -> Model:
    """The model, or a copy of it without tables if it has any."""
    if not any(isinstance(owner.basis, TabledBasis) for _, owner in _owners(model)):
        return model
    copied = copy.deepcopy(model)
    set_knots(copied, None)
    return copied


def expect_tables(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Create buffers for the tables that a state dict has, so that the model can load it."""
    for name, module in model.named_modules():
        if isinstance(module, HoldsTables):
            module.allocate_tables(state, f"{name}." if name else "")


def _owners(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the path and module of each owner: a module whose ``basis`` of edge lengths feeds radial networks in it."""
    for name, module in model.named_modules():
        basis = getattr(module, "basis", None)
        if isinstance(module, HoldsTables) or not isinstance(basis, torch.nn.Module):
            continue
        if cutoff_of(basis, None) is not None and any(True for _ in _networks(module)):
            yield name, module


def _networks(owner: torch.nn.Module) -> Iterator[tuple[str, ScalarNetwork]]:
    for name, module in owner.named_modules():
        if isinstance(module, ScalarNetwork):
            yield name, module


def _basis(owner: Any) -> Any:
    """The basis of an owner without its tables."""
    return owner.basis.basis if isinstance(owner.basis, TabledBasis) else owner.basis


def _is_frozen(owner: torch.nn.Module) -> bool:
    return any(network.table is not None for _, network in _networks(owner))


def _freeze(
    prefix: str, owner: Any, tolerance: float, count: int | None, species: Sequence[int | str] | None
) -> tuple[TabledBasis, list[tuple[ScalarNetwork, Tensor]], list[CompressionRow]]:
    """New parts of one owner, which stays as it is, see `_owners`: basis, tables, and their rows of the report."""
    basis, transform = in_float64(_basis(owner)), in_float64(getattr(owner, "transform", None))
    networks, device = dict(_networks(owner)), next(owner.parameters()).device
    dtype = next(iter(networks.values())).weights[-1].dtype
    known = getattr(owner, "species", ())
    if not known and transform is None:  # a network of the user's, with one table for all pairs
        species = known = (1,)
    codes = _codes(known, species, transform is not None).to(device)
    pairs = [()] if transform is None else list(zip(*(index.tolist() for index in pair_ends(codes)), strict=True))
    exact = [
        _of_lengths(in_float64(network), basis, transform, pair) for network in networks.values() for pair in pairs
    ]
    knots = Knots(count or 16, cutoff_of(basis, None), end_of(basis)).to(device)
    if count is None:
        knots, errors = fewest_knots(knots, exact, dtype, tolerance)
    else:
        errors = [table_error(knots, function, dtype, SAMPLES).error for function in exact]
    frozen, tables, rows = TabledBasis(_basis(owner), knots.count).to(device), [], []
    limits = [tolerance if count is None else 1.05 * max(error) for error in errors]
    if not knots.kink:  # a table of B-splines is a third as large; its slopes have fewer digits where knots are near
        of_splines = {
            to: [table_error(knots, function, to, SAMPLES, 1).error for function in exact]
            for to in (dtype, torch.float32)  # to which a model may be converted
        }
        if all(max(e) <= limit for part in of_splines.values() for e, limit in zip(part, limits, strict=True)):
            frozen.of_splines, errors = torch.zeros(1, device=device), of_splines[dtype]
    at = frozen(knots.at[:0])._replace(kink=knots.kink)
    if transform is not None:
        frozen.pairs, at = codes, at._replace(functions=frozen.at_pairs(transform, codes))
    if isinstance(owner.basis, TabledBasis):
        live = torch.tensor(owner.basis.knots.count, device=device)
        frozen.live = owner.basis.live if _is_frozen(owner) else live
    for n, (name, network) in enumerate(networks.items()):
        with torch.no_grad():
            table = tabulate(at, network.rows, list(network.weights), dtype)
        path, size = ".".join(part for part in (prefix, name) if part), table.numel() * table.itemsize / 2**20
        tables.append((network, table))
        error = largest(errors[n * len(pairs) : (n + 1) * len(pairs)])
        rows.append(CompressionRow(path, knots.count, table.shape[1], error, size))
    return frozen, tables, rows


def _of_lengths(network: Any, basis: Any, transform: Any, pair: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
    """A radial network as a function of lengths alone, between two species if it depends on them."""

    def run(lengths: Tensor) -> Any:
        species = (torch.full_like(lengths, index, dtype=torch.int64) for index in pair)
        functions = basis(lengths, transform.between(lengths, *species)) if pair else basis(lengths)
        return ScalarNetwork.forward(network, functions)  # of functions; the network of a step takes lengths

    return run


def _codes(known: Sequence[int], species: Sequence[int | str] | None, limited: bool) -> Tensor:
    """Codes of the pairs of species that may occur; ``limited`` bounds their number, as each pair has its own table."""
    listed = known if species is None else read_species(species)
    strange = [z for z in listed if z not in known]
    if strange or not listed:
        raise ConfigError(
            f"species must be some of {symbols_of(known)}, got {symbols_of(strange) or 'none'}. Leave out the others."
        )
    indices = torch.tensor(sorted({list(known).index(z) for z in listed}))
    if limited and len(indices) > MOST_SPECIES:
        raise ConfigError(
            f"tables for pairs must be of at most {MOST_SPECIES} species, got {len(indices)}. Pass species=, those "
            "that will occur."
        )
    return torch.unique(pair_codes(*torch.cartesian_prod(indices, indices).T))


def _note(owner: torch.nn.Module, knots: int | None) -> None:
    options = getattr(owner, "options", None)
    if isinstance(options, dict) and "knots" in options:
        options["knots"] = knots
