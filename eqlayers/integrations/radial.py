"""Radial networks of other packages by interpolation: tables in place of a network that runs at every edge.

The module that computes radial functions returns lengths instead, each radial network behind it returns knot intervals
and coefficients, and the fused convolution interpolates the table inside its kernel. In training, tables are
made in every call; otherwise once, and again after the weights have changed, or if a gradient of the weights is needed.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..core.errors import EqlayersError
from ..core.torch_internals import is_plain
from ..layers.radial.knots import Knots
from ..layers.radial.radial_table import RadialTable, TableError, fewest_knots, in_float64, largest
from ..layers.radial.tables import KnotBasis, SplineTable, may_be_kept
from ..layers.tensor_product.tabled_weights import TabledWeights
from .radial_families import FAMILIES, Family, PairSpecies, refuse_calls, refuse_holder
from .replacement import Replacement
from .report import Row, warn_fault
from .structure import Registered, Registration

#: Functions of lengths have no value at 0 in some packages; nothing is nearer.
NEAREST = 1e-9
#: Most bytes of the tables of one network, for all pairs of species that occurred; beyond, it runs at every edge.
MOST_BYTES = 1 << 29
#: Tolerance below which tables of training steps keep the digits of slopes in float32.
_FINE = 5e-5


class _Composite(nn.Module):
    """The radial functions and the network behind them: lengths ``[N]`` to weights ``[N, W]``.

    If either depends on species, its input is ``[N, 2]``, lengths and pairs of species as numbers.
    """

    species: Tensor | None

    def __init__(
        self, family: Family, embedding: nn.Module, block: nn.Module, name: str, factor: float, species: Tensor | None
    ) -> None:
        super().__init__()
        self.embedding, self.network = embedding, block.get_submodule(name)
        self.functions, self.factor = family.functions, factor
        self.joined = nn.ModuleList(getattr(block, name) for name in family.joined if hasattr(block, name))
        self.register_buffer("species", species, persistent=False)
        self.pairs = None if species is None else _some_pairs(species, bool(self.joined))

    def forward(self, columns: Tensor) -> Tensor:
        like = next(self.network.parameters(), columns)
        lengths = columns if columns.ndim == 1 else columns[:, 0]
        lengths = torch.where(lengths.abs() < NEAREST, NEAREST, lengths)
        if self.species is None or self.pairs is None:
            functions = self.functions(self.embedding, lengths)
        else:
            pairs = torch.full_like(lengths, self.pairs[0]) if columns.ndim == 1 else columns[:, 1].detach()
            species = PairSpecies(pairs.long() // len(self.species), pairs.long() % len(self.species), self.species)
            functions = self.functions(self.embedding, lengths, species)
            maps = [module(species.one_hot(like))[index] for module, index in zip(self.joined, species, strict=False)]
            functions = torch.cat([functions.to(like.dtype), *maps], 1)
        return self.network(self.factor * functions.to(like.dtype))


def of_pairs(network: _Composite, pairs: Sequence[int] | None) -> list[Callable[[Tensor], Tensor]]:
    """A network as functions of lengths alone: one function, or one for each of the given pairs of species."""

    def of_pair(pair: int) -> Callable[[Tensor], Tensor]:
        return lambda lengths: network(torch.stack([lengths, torch.full_like(lengths, pair)], 1))

    return [network] if pairs is None else [of_pair(pair) for pair in pairs]


def _some_pairs(species: Tensor, ordered: bool) -> list[int]:
    """A few pairs of species to fit tables on: of the lightest and heaviest element, and one between; as numbers."""
    order, count = species.argsort().tolist(), len(species)
    some = {order[0], order[-1]}
    pairs = {(a, b) for a in some for b in some if ordered or a <= b}
    return sorted(a * count + b for a, b in pairs | {(order[count // 2],) * 2})


class _Shared:
    """Knot intervals and interpolation coefficients of the edges of one call, shared by all networks of a model."""

    def __init__(self) -> None:
        #: One tuple, so that threads may share a model.
        self.last: tuple[Any, ...] = (None, None, None, torch.empty(0, dtype=torch.int64))

    def of(self, knots: Knots, columns: Tensor) -> KnotBasis:
        """Knot intervals and interpolation coefficients of edges, in tables for all pairs of species that occurred.

        All networks have the same knots; columns are ``[E, 1]`` lengths, or ``[E, 2]`` with pairs of species.
        """
        *references, pairs = self.last
        known, interval, coefficients = (None if one is None else one() for one in references)
        by_pairs = columns.shape[1] > 1
        if known is not columns or interval is None or coefficients is None:
            if knots.at.device != columns.device:
                knots.to(columns.device)
            interval, coefficients = knots(columns[:, 0])
            if by_pairs:
                index, pairs = _among(pairs.to(columns.device), columns[:, 1].detach().long())
                interval = interval + index * knots.count
            self.last = (*map(weakref.ref, (columns, interval, coefficients)), pairs)
        functions, count = knots.at, len(pairs) if by_pairs else 1
        if by_pairs:
            functions = torch.stack([functions.repeat(count), pairs.double().repeat_interleave(knots.count)], 1)
        return KnotBasis(interval, coefficients, functions, knots.count, knots.end, count, knots.kink)

    def __reduce__(self) -> Any:  # of copies and pickles
        return _Shared, ()


def _among(pairs: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The index of each edge's ``codes [E]`` in the sorted numbers of known ``pairs [P]``, and these with new ones."""
    index = torch.searchsorted(pairs, codes)
    if pairs.numel() == 0 or bool((pairs[index.clamp(max=len(pairs) - 1)] != codes).any()):
        pairs = torch.unique(torch.cat([pairs, codes]))
        index = torch.searchsorted(pairs, codes)
    return index, pairs


class TabledEmbedding(Replacement):
    """Replacement of a module that makes radial functions of lengths: returns the lengths instead, in float64.

    The model multiplies the functions by ``factor`` afterwards; the lengths are divided by it.
    """

    def __init__(self, family: Family, original: nn.Module, factor: float, pairs: str | None) -> None:
        super().__init__()
        mirror(self, original)
        self.lengths, self.factor, self.options = family.lengths, factor, {"pairs": pairs} if pairs else {}
        self.stand_in_for(original)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Lengths ``[E, 1]`` instead of radial functions ``[E, B]``; ``[E, 2]`` with pairs of species."""
        return self.lengths(self.original, self.factor, *arguments, **named, **self.options)


class TabledRadial(Replacement):
    """Replacement of a radial network: returns the knot interval and interpolation coefficients of each edge.

    All networks of a model have one ``shared``. With ``stored`` it returns weights ``[E, W]``, for networks whose
    weights no convolution reads. With ``fine`` tables made in training keep slopes with the precision of float32.
    """

    def __init__(
        self, original: nn.Module, table: RadialTable, shared: _Shared, stored: bool = False, fine: bool = False
    ) -> None:
        super().__init__()
        mirror(self, original)
        splines = SplineTable(precise=fine, on_gpus=True)
        vars(self).update(_table=table, _shared=shared, _stored=stored, _splines=splines)
        self.stand_in_for(original)

    def forward(self, lengths: Tensor) -> TabledWeights | Tensor:
        """``[E, 1]`` lengths, or more columns if the table is for pairs of species, to the weights of their edges.

        Tables of pairs are of those that have occurred; the network runs at every edge while it is trained, or if these
        tables are too large.
        """
        table: RadialTable = vars(self)["_table"]
        tensors = table.tensors
        columns = lengths[:, :2] if lengths.shape[1] > 2 else lengths
        by_pairs = columns.shape[1] > 1
        if by_pairs and not (may_be_kept(tensors, self.training) and is_plain([columns], observed=True)):
            return table.network(columns)
        at = vars(self)["_shared"].of(table.knots, columns)
        if by_pairs and at.num_rows * table.width * table.dtype.itemsize > MOST_BYTES:
            return table.network(columns)
        made = vars(self)["_splines"](at, table.rows, tensors, self.training, table.dtype)
        return made.weights() if vars(self)["_stored"] else made

    def extra_repr(self) -> str:
        """Number of knots, and whether there is a table for each pair of species."""
        table = vars(self)["_table"]
        pairs = "" if table.network.pairs is None else ", for each pair of species that occurs, outside of training"
        return f"{table.knots.extra_repr()}{pairs}"


def _refuse_modes(whole: _Composite, cutoff: float) -> str | None:
    """Why a network gives other weights in training mode, or None; it runs on a copy of the network."""
    trial = copy.deepcopy(whole)
    like = next(trial.network.parameters(), torch.empty(0))
    lengths = torch.linspace(0.1, 0.9, 5, dtype=torch.float64, device=like.device) * cutoff
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        weights = [trial.train(mode)(lengths.to(like.dtype)) for mode in (True, True, False)]
    return None if all(torch.equal(weights[0], other) for other in weights) else "gives other weights in training mode"


def mirror(new: nn.Module, original: nn.Module) -> None:
    """Give ``new`` the submodules, parameters and buffers of ``original``: the same objects, so the same state dict."""
    for kind in ("_modules", "_parameters", "_buffers"):
        vars(new)[kind] = vars(original)[kind]


#: The row of a radial network, or of the embedding before it, and its replacement at each place; none if it stays.
Tabled = tuple[Row, list[tuple[Registration, Replacement]]]


def tables(registered: Registered, done: dict[nn.Module, Replacement], tolerance: float) -> Iterator[Tabled]:
    """Make tables for the radial networks of all convolutions in ``done``, or find the reasons why they stay."""
    for family in FAMILIES:
        for embedding in [module for module in registered if type(module).__name__ == family.embedding]:
            yield from _of_embedding(family, embedding, registered, done, tolerance)


def _of_embedding(
    family: Family, embedding: nn.Module, registered: Registered, done: dict[nn.Module, Replacement], tolerance: float
) -> Iterator[Tabled]:
    """Make tables for all networks that read the radial functions of one embedding, or for none of them."""
    (radial, convolution), path = family.block, registered[embedding][0].path
    blocks = [module for module in registered if radial in module._modules and convolution in module._modules]
    reason, factor = family.refuse(embedding, list(registered)), 1.0
    for registration in registered[embedding]:
        reason = reason or refuse_holder(embedding, registration.parent)
    for block in blocks:
        fused = block._modules[convolution]
        if fused is None or not isinstance(done.get(fused, fused), family.convolution):
            reason = reason or f"is read by {registered[block][0].path}, whose convolution was not replaced"
        reason = reason or refuse_holder(embedding, block)
    if len({block._modules[radial] for block in blocks}) < len(blocks) or not blocks:
        reason = reason or "belongs to radial networks that are shared, or to none"
    made: list[tuple[nn.Module, RadialTable, bool]] = []
    shared, envelope_after = _Shared(), not reason and family.envelope_after(embedding)
    species = None if reason else family.species(embedding, blocks, list(registered))
    try:
        factor = factor if reason else family.factor(embedding, list(registered))
        for block, name in (
            (b, n) for b in blocks for n in (radial, *family.readers) if n in b._modules and not reason
        ):
            network = block._modules[name]
            assert network is not None
            whole, cutoff = _Composite(family, embedding, block, name, factor, species), family.cutoff(embedding)
            reason = reason or refuse_calls(embedding, network) or _refuse_modes(whole, cutoff)
            if reason:
                break
            made.append((network, RadialTable(whole, cutoff, open_end=envelope_after), name != radial))
        errors = _set_knots([table for _, table, _ in made], tolerance) if made else []
    except (EqlayersError, RuntimeError, TypeError, AttributeError) as error:
        reason = f"gives no table: {type(error).__name__}: {error}"
        if isinstance(error, (TypeError, AttributeError)):  # no refusal of this package
            warn_fault(Row(path, type(embedding).__name__, "radial", reason=reason))
    if reason:
        yield Row(path, type(embedding).__name__, "radial", reason=reason, places=(path,)), []
        return
    for (network, table, stored), off in zip(made, errors, strict=True):
        note = f"{table.knots.count} knots keep weights within about {off.values:.1e}, slopes {off.slopes:.1e}"
        note += f" of the largest ({registered[network][0].path})"
        new = TabledRadial(network, table, shared, stored, tolerance < _FINE)
        yield _replaced(network, registered[network], new, error=max(off) / tolerance, note=note)
    pairs = None
    if species is not None:
        pairs = "ordered" if any(hasattr(block, name) for block in blocks for name in family.joined) else "either order"
    yield _replaced(embedding, registered[embedding], TabledEmbedding(family, embedding, factor, pairs))


def _replaced(original: nn.Module, registrations: list[Registration], new: Replacement, **fields: Any) -> Tabled:
    places = tuple(at.path for at in registrations)
    row = Row(places[0], type(original).__name__, "radial", type(new).__name__, places=places, **fields)
    return row, [(at, new) for at in registrations]


def _set_knots(tables: Sequence[RadialTable], tolerance: float) -> list[TableError]:
    """Give all tables the fewest knots with which all errors are within the tolerance; return the error of each."""
    networks: list[Any] = [in_float64(table.network) for table in tables]
    exact = [of_pairs(network, network.pairs) for network in networks]
    bound = tolerance if networks[0].pairs is None else 0.8 * tolerance  # of the pairs that are not tried
    functions = [function for some in exact for function in some]
    knots, errors = fewest_knots(tables[0].knots, functions, tables[0].dtype, bound)
    for table in tables:
        table.knots = knots
    return [largest(errors[n : n + len(exact[0])]) for n in range(0, len(errors), len(exact[0]))]
