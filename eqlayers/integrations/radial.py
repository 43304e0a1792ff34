"""Radial networks of other packages by interpolation: tables in place of a network that runs at every edge.

The module that makes functions of lengths hands on the lengths, each radial network behind it reads its table at them,
and the fused convolution combines the rows of the table inside its kernel. In training, tables are made in every call;
otherwise once, and again after the weights have changed, or where a gradient of the weights is asked for.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.errors import EqlayersError
from ..core.torch_internals import is_plain
from ..layers.radial.knots import Kept, may_be_kept, spline
from ..layers.radial.lower import INTERPOLATIONS
from ..layers.radial.tabled_basis import Knots, by_coefficients, check_end, in_a_row, keeps_coefficients
from ..layers.radial_table.module import (
    Errors,
    RadialTable,
    TableError,
    fewest_knots,
    in_float64,
    through_float64,
    with_tensors,
    worst_of,
)
from ..layers.tensor_product.tabled_weights import TabledWeights
from .radial_families import FAMILIES, Ends, Family, refuse_calls, refuse_holder
from .replacement import Replacement
from .structure import Place

#: Functions of lengths have no value at 0 in some packages; nothing is nearer.
NEAREST = 1e-9
#: Most bytes of the tables of one network, for all pairs of species that occurred; beyond, it runs at every edge.
MOST_BYTES = 1 << 29
#: Tolerance below which live tables are no coefficients, whose slopes in float32 are 1e-5 off.
_FINE = 5e-5


class _Composite(nn.Module):
    """Weights ``[N, W]`` of lengths ``[N]``, and of the species at both ends if the network depends on them."""

    species: Tensor | None

    def __init__(
        self,
        family: Family,
        embedding: nn.Module,
        network: nn.Module,
        factor: float,
        block: nn.Module,
        species: Tensor | None,
    ) -> None:
        super().__init__()
        self.embedding, self.network = embedding, network
        self.functions, self.factor = family.functions, factor
        self.joined = nn.ModuleList(getattr(block, name) for name in family.joined if hasattr(block, name))
        self.register_buffer("species", species, persistent=False)

    def forward(self, lengths: Tensor, first: Tensor | None = None, second: Tensor | None = None) -> Tensor:
        like = next(self.network.parameters(), lengths)
        lengths = torch.where(lengths.abs() < NEAREST, NEAREST, lengths)
        if self.species is None or first is None or second is None:
            functions = self.functions(self.embedding, lengths)
        else:
            ends = Ends(first, second, self.species)
            functions = self.functions(self.embedding, lengths, ends)
            maps = [one(ends.one_hot(like)) for one in self.joined]
            functions = torch.cat([functions.to(like.dtype), *(m[e] for m, e in zip(maps, ends, strict=False))], 1)
        weights: Tensor = self.network(self.factor * functions.to(like.dtype))
        return weights


def _of_pair(network: Callable[..., Tensor], code: int, species: int) -> Callable[[Tensor], Tensor]:
    """The function of lengths between two of so many species."""
    ends = divmod(code, species)
    return lambda lengths: network(lengths, *(torch.full_like(lengths, one, dtype=torch.int64) for one in ends))


class PairTable(nn.Module):
    """Tables of a network that depends on the species at both ends of an edge: one for each pair that has come.

    Attributes:
        knots: Are to be set; errors of some pairs are looked at.
    """

    def __init__(self, network: _Composite, cutoff: float, open_end: bool) -> None:
        super().__init__()
        self.network = network
        self.tried = _some_pairs(network.species, bool(network.joined))
        like = next(network.network.parameters())
        self.knots = Knots(16, cutoff, end="open" if open_end else "level").to(like.device)
        ends = self.exact()[0](self.knots.ends()).detach()
        if not open_end:
            check_end(ends, cutoff)
        self.width = ends.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the tables, equal to the dtype of the weights."""
        return next(self.network.network.parameters()).dtype

    @property
    def bytes_of_pair(self) -> int:
        """Bytes of a table."""
        return self.knots.rows * self.width * self.dtype.itemsize

    def exact(self) -> list[Callable[[Tensor], Tensor]]:
        """Compute exactly, in float64, for some pairs: the lightest and the heaviest atoms, and one between."""
        return self.of_pairs(in_float64(self.network), self.tried)

    def of_pairs(self, network: Callable[..., Tensor], codes: Iterable[int]) -> list[Callable[[Tensor], Tensor]]:
        """The functions of lengths, from one of lengths and species."""
        assert self.network.species is not None
        return [_of_pair(network, code, len(self.network.species)) for code in codes]

    def at_edges(self, handed: Tensor) -> Tensor:
        """``[E, 2]`` lengths and pairs of species to the weights that the network gives."""
        species = self.network.species
        assert species is not None
        codes = handed[:, 1].detach().long()
        weights: Tensor = self.network(handed[:, 0], codes // len(species), codes % len(species))
        return weights

    def made_of(self, tensors: Sequence[Tensor]) -> Tensor:
        """The tables of pairs, one after the other, from parameters and buffers of the network, and the pairs."""
        *weights, codes = tensors
        functions = self.of_pairs(with_tensors(self.network, weights), codes.tolist())
        parts = (self.knots.table(self.knots.at, function) for function in functions)
        return in_a_row(parts, len(codes), self.knots.count, self.dtype)


def _some_pairs(species: Tensor | None, ordered: bool) -> list[int]:
    """Codes of pairs of light and of heavy atoms, of one of each, and of one between."""
    assert species is not None
    order, count = species.argsort().tolist(), len(species)
    some = {order[0], order[-1]}
    pairs = {(a, b) for a in some for b in some if ordered or a <= b}
    return sorted(a * count + b for a, b in pairs | {(order[count // 2],) * 2})


class _Shared:
    """The places where lengths of one call read the tables: the same for all networks of a model."""

    def __init__(self) -> None:
        self.last: tuple[Any, ...] = (None, None, None, torch.empty(0, dtype=torch.int64))

    def of(self, table: RadialTable | PairTable, handed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Intervals and coefficients, and pairs; intervals are among the tables of all these, which have come.

        What is read and set is one tuple, so that threads may share a model.

        Args:
            table: Of any of the networks.
            handed: ``[E, 1]`` lengths, or ``[E, 2]`` with pairs of species.
        """
        *kept, pairs = self.last
        known, interval, coefficients = (None if one is None else one() for one in kept)
        if known is handed and interval is not None and coefficients is not None:
            return interval, coefficients, pairs
        if table.knots.at.device != handed.device:
            table.knots.to(handed.device)
        interval, coefficients = table.knots(handed[:, 0])
        if handed.shape[1] > 1:
            places, pairs = _among(pairs.to(handed.device), handed[:, 1].detach().long())
            interval = interval + places * table.knots.count
        self.last = (*map(weakref.ref, (handed, interval, coefficients)), pairs)
        return interval, coefficients, pairs

    def __deepcopy__(self, memo: Any) -> _Shared:
        return memo.setdefault(id(self), _Shared())

    def __reduce__(self) -> Any:
        return _Shared, ()


def _among(pairs: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """The place of every code among those that have come, these included; and those."""
    places = torch.searchsorted(pairs, codes)
    if pairs.numel() == 0 or bool((pairs[places.clamp(max=len(pairs) - 1)] != codes).any()):
        pairs = torch.unique(torch.cat([pairs, codes]))
        places = torch.searchsorted(pairs, codes)
    return places, pairs


class _BeforeEnvelope(TabledWeights):
    """Weights that a block multiplies by the envelope of every edge: the coefficients are."""

    def __mul__(self, envelope: Any) -> TabledWeights:
        if not isinstance(envelope, Tensor) or envelope.shape != (len(self.interval), 1):
            refuse: Any = super().__mul__
            return refuse(envelope)
        coefficients = self.coefficients * envelope.to(self.coefficients.dtype)
        return TabledWeights(self.table, self.interval, coefficients, self.orders)


class TabledEmbedding(Replacement):
    """Replacement of functions of lengths: returns the lengths, in float64, over the factor that follows."""

    def __init__(self, family: Family, original: nn.Module, factor: float, pairs: str | None) -> None:
        super().__init__()
        mirror(self, original)
        self.hand_on, self.behind = family.hand_on, factor
        self.also = {"pairs": pairs} if pairs else {}
        self.stand_in_for(original)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """``[E, 1]`` in place of ``[E, B]``; ``[E, 2]`` with pairs of species."""
        return self.hand_on(self.original, self.behind, *arguments, **named, **vars(self).get("also", {}))


class TabledRadial(Replacement):
    """Replacement of a radial network: returns where each edge reads its table.

    Args:
        original: The network.
        table: Of the network and the functions before it.
        shared: Of all networks of a model.
        kind: 'weights' that a convolution reads; those 'before envelope', by which a block multiplies them; or
            'numbers', one or few for each edge, which are stored.
        fine: Whether the digits of coefficients do not keep the tolerance.
    """

    _kept: Kept

    def __init__(
        self,
        original: nn.Module,
        table: RadialTable | PairTable,
        shared: _Shared,
        kind: str = "weights",
        fine: bool = False,
    ) -> None:
        super().__init__()
        mirror(self, original)
        vars(self).update(_table=table, _shared=shared, _kind=kind, _fine=fine, _kept=Kept())  # of weights of now
        self.stand_in_for(original)

    def forward(self, lengths: Tensor) -> TabledWeights | Tensor:
        """``[E, 1]`` lengths, or more columns if the table is for pairs of species, to the weights of their edges."""
        table, shared = vars(self)["_table"], vars(self)["_shared"]
        made = (self._of_pairs if isinstance(table, PairTable) else self._of_lengths)(table, shared, lengths)
        kind = vars(self)["_kind"]
        if isinstance(made, Tensor):
            return made
        if kind == "before envelope":
            return _BeforeEnvelope(*made)
        return made.weights() if kind == "numbers" else made

    def _of_lengths(self, table: RadialTable, shared: _Shared, lengths: Tensor) -> TabledWeights:
        """Read a table, which is made anew in training, in a transform, or if the weights have changed.

        Weights are compared by value: averages of weights are put in and out without a trace.
        """
        knots, of = table.knots, _tensors(table)
        interval, coefficients, _ = shared.of(table, lengths)
        if may_be_kept(of, self.training):
            return _by_rows(self._kept(of, table.made_of), interval, coefficients)
        network, dtype = through_float64(table.network), of[0].dtype
        fine = vars(self)["_fine"] and dtype is not torch.float64
        if knots.kink is not None or fine or not keeps_coefficients(knots.count, dtype):
            return _by_rows(knots.table(knots.at, network).to(dtype), interval, coefficients)
        return by_coefficients(spline(network(knots.at), knots.end).to(dtype), interval, coefficients, knots.count)

    def _of_pairs(self, table: PairTable, shared: _Shared, lengths: Tensor) -> TabledWeights | Tensor:
        """Read tables of the pairs that have occurred; run the network if weights are trained or tables too large."""
        handed, of = lengths[:, :2], _tensors(table)
        if not (may_be_kept(of, self.training) and is_plain([handed], observed=True)):
            return table.at_edges(handed)
        interval, coefficients, pairs = shared.of(table, handed if lengths.shape[1] > 2 else lengths)
        if len(pairs) * table.bytes_of_pair > MOST_BYTES:
            return table.at_edges(handed)
        return _by_rows(self._kept([*of, pairs], table.made_of), interval, coefficients)

    def extra_repr(self) -> str:
        """Knots, and when the table is made."""
        table = vars(self)["_table"]
        live = self.training and any(weight.requires_grad for weight in table.parameters())
        when = {
            (False, False): "kept while its weights stay",
            (False, True): "live",
            (True, False): "for each pair of species that comes, kept while its weights stay",
            (True, True): "for pairs of species; the network runs at every edge while its weights are trained",
        }
        return f"{table.knots.extra_repr()}, {when[isinstance(table, PairTable), live]}"


def _tensors(table: Any) -> list[Tensor]:
    return [*table.network.parameters(), *table.network.buffers()]


def _by_rows(rows: Tensor, interval: Tensor, coefficients: Tensor) -> TabledWeights:
    return TabledWeights(rows, interval, coefficients.to(rows.dtype), INTERPOLATIONS["spline"].orders)


def _refuse_modes(whole: _Composite, cutoff: float) -> str | None:
    """Why a network gives other weights in training mode, or None; a copy is looked at."""
    trial = copy.deepcopy(whole)
    like = next(trial.network.parameters(), torch.empty(0))
    lengths = torch.linspace(0.1, 0.9, 5, dtype=torch.float64, device=like.device) * cutoff
    devices = [like.device] if like.device.type == "cuda" else []
    ends = () if whole.species is None else torch.zeros(2, 5, dtype=torch.int64, device=like.device)
    with torch.random.fork_rng(devices), torch.no_grad():
        weights = [trial.train(mode)(lengths.to(like.dtype), *ends) for mode in (True, True, False)]
    return None if all(torch.equal(weights[0], other) for other in weights) else "gives other weights in training mode"


def mirror(new: nn.Module, original: nn.Module) -> None:
    """Give a module the very submodules, parameters and buffers of another: its state dict and moves are the same."""
    for kind in ("_modules", "_parameters", "_buffers"):
        vars(new)[kind] = vars(original)[kind]


class Tabled(NamedTuple):
    """One module that makes way for a table, or stays.

    Attributes:
        original: The module.
        places: Where it is.
        new: What stands in for it; None if it stays.
        error: Error of the table; None if there is no table.
        knots: Of the table.
        reason: Why it stays.
    """

    original: nn.Module
    places: list[Place]
    new: Replacement | None = None
    error: TableError | None = None
    knots: int = 0
    reason: str = ""


def tables(
    places: dict[nn.Module, list[Place]], done: dict[nn.Module, Replacement], tolerance: float
) -> Iterator[Tabled]:
    """Tables for the radial networks of all convolutions that were fused, or the reasons against them."""
    for family in FAMILIES:
        for embedding in [module for module in places if type(module).__name__ == family.embedding]:
            yield from _of_embedding(family, embedding, places, done, tolerance)


def _knots(made: Sequence[RadialTable | PairTable], tolerance: float) -> list[TableError]:
    """Give all tables the knots that keep the tolerance in each, and say the errors of each."""
    if not made:
        return []
    exact = [[in_float64(one.network)] if isinstance(one, RadialTable) else one.exact() for one in made]
    bound = tolerance if isinstance(made[0], RadialTable) else 0.8 * tolerance  # of the pairs that are not tried
    errors = Errors([function for some in exact for function in some], bound)
    like = next(made[0].parameters())
    knots = fewest_knots(made[0].knots, like.dtype, errors)
    for one in made:
        one.knots = knots
    return [worst_of(errors.by_function[function] for function in some).error for some in exact]


def _of_embedding(
    family: Family,
    embedding: nn.Module,
    places: dict[nn.Module, list[Place]],
    done: dict[nn.Module, Replacement],
    tolerance: float,
) -> Iterator[Tabled]:
    """All of them, or none: the functions have one form."""
    radial, convolution = family.block
    blocks = [module for module in places if radial in module._modules and convolution in module._modules]
    reason, factor = family.refuse(embedding, list(places)), 1.0
    for place in places[embedding]:
        reason = reason or refuse_holder(embedding, place.parent)
    for block in blocks:
        fused = block._modules[convolution]
        if fused is None or not isinstance(done.get(fused, fused), family.convolution):
            reason = reason or f"is read by {places[block][0].path}, whose convolution was not replaced"
        reason = reason or refuse_holder(embedding, block)
    if len({block._modules[radial] for block in blocks}) < len(blocks) or not blocks:
        reason = reason or "belongs to radial networks that are shared, or to none"
    made: list[tuple[nn.Module, RadialTable | PairTable, str]] = []
    shared, later = _Shared(), not reason and family.later(embedding)
    species = None if reason else family.species(embedding, blocks, list(places))
    try:
        factor = factor if reason else family.factor(embedding, list(places))
        for block, name in (
            (b, n) for b in blocks for n in (radial, *family.readers) if n in b._modules and not reason
        ):
            network = block._modules[name]
            assert network is not None
            whole, cutoff = _Composite(family, embedding, network, factor, block, species), family.cutoff(embedding)
            reason = reason or refuse_calls(embedding, network) or _refuse_modes(whole, cutoff)
            if reason:
                break
            kind = "numbers" if name != radial else "before envelope" if later else "weights"
            if species is None:
                made.append((network, RadialTable(whole, cutoff, open_end=later), kind))
            else:
                made.append((network, PairTable(whole, cutoff, later), kind))
        errors = _knots([table for _, table, _ in made], tolerance)
    except (EqlayersError, RuntimeError, TypeError, AttributeError) as error:
        reason = f"gives no table: {error}"
    if reason:
        yield Tabled(embedding, places[embedding], reason=reason)
        return
    fine = tolerance < _FINE
    for (network, table, kind), off in zip(made, errors, strict=True):
        new = TabledRadial(network, table, shared, kind, fine)
        yield Tabled(network, places[network], new, off, table.knots.count)
    pairs = None
    if species is not None:
        pairs = "ordered" if any(hasattr(block, name) for block in blocks for name in family.joined) else "either order"
    yield Tabled(embedding, places[embedding], TabledEmbedding(family, embedding, factor, pairs))
