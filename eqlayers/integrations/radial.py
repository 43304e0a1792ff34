"""Radial networks of other packages by interpolation: tables in place of a network that runs at every edge.

The module that makes functions of lengths hands on the lengths, each radial network behind it reads its table at them,
and the fused convolution combines the rows of the table inside its kernel. Tables are made in every call in which a
gradient of weights may be asked for; otherwise once, and again after the weights have changed.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import EqlayersError
from ..functional.tabled import TabledWeights
from ..nn.radial_table import RadialTable, TableError, made_at_knots, through_float64
from .modules import Replacement
from .places import Place
from .radial_families import FAMILIES, Family, refuse_calls, refuse_holder

#: Functions of lengths have no value at 0 in some packages; nothing is nearer.
NEAREST = 1e-9


class _Composite(nn.Module):
    """Weights ``[N, W]`` of lengths ``[N]``."""

    def __init__(self, family: Family, embedding: nn.Module, network: nn.Module, factor: float) -> None:
        super().__init__()
        self.embedding, self.network = embedding, network
        self.functions, self.factor = family.functions, factor

    def forward(self, lengths: Tensor) -> Tensor:
        like = next(self.network.parameters(), lengths)
        lengths = torch.where(lengths.abs() < NEAREST, NEAREST, lengths)
        found: Tensor = self.network(self.factor * self.functions(self.embedding, lengths).to(like.dtype))
        return found


class _Shared:
    """Where the lengths of one call read the tables: the same for all networks of a model."""

    def __init__(self) -> None:
        self.last: tuple[Any, ...] = (None, None, None)

    def of(self, table: RadialTable, lengths: Tensor) -> tuple[Tensor, Tensor]:
        known, interval, coefficients = (None if one is None else one() for one in self.last)
        if known is lengths and interval is not None and coefficients is not None:
            return interval, coefficients
        if table.knots.at.device != lengths.device:
            table.knots.to(lengths.device)
        interval, coefficients = table.knots(lengths.squeeze(1))
        self.last = tuple(map(weakref.ref, (lengths, interval, coefficients)))
        return interval, coefficients

    def __deepcopy__(self, memo: Any) -> _Shared:
        return memo.setdefault(id(self), _Shared())

    def __reduce__(self) -> Any:
        return _Shared, ()


class TabledEmbedding(Replacement):
    """In place of functions of lengths: the lengths themselves, in float64, over the factor that comes after it."""

    def __init__(self, family: Family, original: nn.Module, factor: float) -> None:
        super().__init__()
        mirror(self, original)
        self.hand_on, self.behind = family.hand_on, factor
        self.stand_in_for(original)

    def forward(self, *given: Any, **named: Any) -> Any:
        """``[E, 1]`` in place of ``[E, B]``."""
        return self.hand_on(self.original, self.behind, *given, **named)


class TabledRadial(Replacement):
    """In place of a radial network: where each edge reads its table.

    Args:
        original: The network.
        table: Of the network and the functions before it.
        shared: Of all networks of a model.
    """

    def __init__(self, original: nn.Module, table: RadialTable, shared: _Shared) -> None:
        super().__init__()
        mirror(self, original)
        vars(self).update(_table=table, _shared=shared, _made=(None, torch.empty(0)))
        self.stand_in_for(original)

    def forward(self, lengths: Tensor) -> TabledWeights:
        """``[E, 1]`` lengths to the weights of their edges."""
        table: RadialTable = vars(self)["_table"]
        interval, coefficients = vars(self)["_shared"].of(table, lengths)
        rows = self._rows(table)
        return TabledWeights(rows, interval, coefficients.to(rows.dtype), 1)

    def _rows(self, table: RadialTable) -> Tensor:
        """``[R, W]``: made anew where gradients may be asked for, or where weights are others.

        Weights are compared by value: averages of weights are put in and out without a trace.

        In float64 both times: of the roundings of a network in float32, divided by the distance of knots, come slopes,
        and forces are ten times as far off.
        """
        weights = list(table.parameters())
        if torch.is_grad_enabled() and any(p.requires_grad for p in weights):
            exact = made_at_knots(table.knots, through_float64(table.network), torch.float64)
            return exact.to(weights[0].dtype)
        now = [t.detach() for t in (*weights, *table.buffers())]
        known, rows = vars(self)["_made"]
        if known is None or not _same(known, now):
            with torch.inference_mode(False), torch.no_grad():
                rows = table.made_once()
                vars(self)["_made"] = ([t.clone() for t in now], rows)
        return rows


def _same(known: list[Tensor], now: list[Tensor]) -> bool:
    """Whether tensors have the same numbers, of one dtype and device."""
    places = zip(known, now, strict=True)
    return all(a.dtype == b.dtype and a.device == b.device and torch.equal(a, b) for a, b in places)


def _refuse_modes(whole: _Composite, cutoff: float) -> str | None:
    """Why a network gives other weights in training mode, or None; a copy is looked at."""
    trial = copy.deepcopy(whole)
    like = next(trial.network.parameters(), torch.empty(0))
    lengths = torch.linspace(0.1, 0.9, 5, dtype=torch.float64, device=like.device) * cutoff
    devices = [like.device] if like.device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.no_grad():
        found = [trial.train(mode)(lengths.to(like.dtype)) for mode in (True, True, False)]
    return None if all(torch.equal(found[0], other) for other in found) else "gives other weights in training mode"


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
        error: Of the table; None of what has none.
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
    """Tables for the radial networks of all convolutions that were fused, or the reasons against them.

    Args:
        places: All modules of the model.
        done: What is replaced by what, convolutions among them.
        tolerance: Of errors of weights and slopes, relative to the largest.
    """
    for family in FAMILIES:
        for embedding in [module for module in places if type(module).__name__ == family.embedding]:
            yield from _of_embedding(family, embedding, places, done, tolerance)


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
    if len({block._modules[radial] for block in blocks}) < len(blocks) or not blocks:
        reason = reason or "belongs to radial networks that are shared, or to none"
    made: list[RadialTable] = []
    try:
        factor = factor if reason else family.factor(embedding, list(places))
        for block in blocks if not reason else ():
            network = block._modules[radial]
            assert network is not None
            whole = _Composite(family, embedding, network, factor)
            reason = reason or refuse_calls(embedding, network) or _refuse_modes(whole, family.cutoff(embedding))
            if reason:
                break
            made.append(RadialTable(whole, family.cutoff(embedding), tolerance=tolerance))
    except (EqlayersError, RuntimeError, TypeError, AttributeError) as error:
        reason = f"gives no table: {error}"
    if reason:
        yield Tabled(embedding, places[embedding], reason=reason)
        return
    count, shared = max(table.knots.count for table in made), _Shared()
    for block, table in zip(blocks, made, strict=True):
        if table.knots.count < count:  # one set of knots for all
            table = RadialTable(table.network, family.cutoff(embedding), knots=count)
        network = block._modules[radial]
        assert network is not None
        yield Tabled(network, places[network], TabledRadial(network, table, shared), table.error(), count)
    yield Tabled(embedding, places[embedding], TabledEmbedding(family, embedding, factor))
