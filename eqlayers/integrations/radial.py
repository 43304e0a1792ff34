"""Radial networks of other packages by interpolation: tables in place of a network that runs at every edge.

The module that makes functions of lengths hands on the lengths, each radial network behind it reads its table at them,
and the fused convolution combines the rows of the table inside its kernel. In training mode tables are made in every
call, so that gradients reach all weights; otherwise once, and again after the weights have changed.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import EqlayersError
from ..functional.tabled import TabledWeights
from ..nn.radial_table import RadialTable, TableError, made_at_knots, through_float64
from .modules import AcceleratedConvolution, AcceleratedMessages, AcceleratedScatter, Replacement
from .places import Place

#: Functions of lengths have no value at 0 in some packages; nothing is nearer.
NEAREST = 1e-9


class Family(NamedTuple):
    """How a package passes functions of lengths to its radial networks.

    Attributes:
        embedding: Class that makes the functions.
        block: Attributes of a block that holds a radial network and a convolution.
        convolution: What stands in for the latter after `accelerate`.
        cutoff: Of the argument of the functions, from the module.
        functions: Functions ``[N, B]`` of arguments ``[N]``, from the module.
        refuse: Why an embedding, or the model around it, must stay, or None.
        hand_on: Lengths, in float64 and over a factor, in place of the functions: from the module and its arguments.
        factor: By which the model multiplies the functions before any network reads them.
    """

    embedding: str
    block: tuple[str, str]
    convolution: type[Replacement]
    cutoff: Callable[[Any], float]
    functions: Callable[[Any, Tensor], Tensor]
    refuse: Callable[[Any, list[nn.Module]], str | None]
    hand_on: Callable[..., Any]
    factor: Callable[[Any, list[nn.Module]], float] = lambda embedding, modules: 1.0


def _mace_functions(embedding: Any, lengths: Tensor) -> Tensor:
    found: Tensor = embedding(lengths.unsqueeze(1), None, None, None)[0]
    return found


def _mace_lengths(embedding: Any, factor: float, lengths: Tensor, *others: Any) -> Any:
    return lengths.double(), None


def _refuse_mace(embedding: Any, modules: list[nn.Module]) -> str | None:
    if hasattr(embedding, "distance_transform"):
        return "depends on species by its distance transform"
    if not getattr(embedding, "apply_cutoff", True):
        return "leaves the envelope to what comes after it"
    for module in modules:
        if hasattr(module, "density_fn"):
            return f"is read by the density of {type(module).__name__} as well"
        if hasattr(module, "source_embedding") or hasattr(module, "target_embedding"):
            return f"is joined with species in {type(module).__name__}"
    return None


def _nequip_functions(embedding: Any, lengths: Tensor) -> Tensor:
    found: Tensor = embedding({embedding.norm_length_field: lengths.unsqueeze(1)})[embedding.edge_invariant_field]
    return found


def _nequip_lengths(embedding: Any, factor: float, data: Any) -> Any:
    data = embedding(data)
    data[embedding.edge_invariant_field] = data[embedding.norm_length_field].double() / factor
    return data


#: Modules of NequIP's that stand around interaction blocks and do not read functions of lengths.
_NEQUIP = {
    *("SequentialGraphNetwork", "ForceStressOutput", "GraphModel", "NodeTypeEmbed", "EdgeLengthNormalizer"),
    *("BesselEdgeLengthEncoding", "SphericalHarmonicEdgeAttrs", "ConvNetLayer", "InteractionBlock", "AtomwiseLinear"),
    *("AvgNumNeighborsNorm", "NoOpGhostExchangeModule", "PerTypeScaleShift", "AtomwiseReduce", "ScalarMLP"),
    *("ZBL", "ApplyFactor", "SaveForOutput", "StressOutput", "PartialForceOutput"),
}


def _refuse_nequip(embedding: Any, modules: list[nn.Module]) -> str | None:
    strange = sorted(
        {type(m).__name__ for m in modules if hasattr(m, "irreps_in") and hasattr(m, "_init_irreps")} - _NEQUIP
    )
    return f"may be read by {', '.join(strange)}, which this package does not know" if strange else None


def _nequip_factor(embedding: Any, modules: list[nn.Module]) -> float:
    found: list[Any] = [m for m in modules if type(m).__name__ == "ApplyFactor"]
    return math.prod(float(m.factor) for m in found if m.in_field == embedding.edge_invariant_field)


def _sevennet_cutoff(embedding: Any) -> float:
    envelope = embedding.cutoff_function
    return float(envelope.cutoff_length if hasattr(envelope, "cutoff_length") else envelope.r_cut)


def _sevennet_functions(embedding: Any, lengths: Tensor) -> Tensor:
    found: Tensor = embedding.basis_function(lengths) * embedding.cutoff_function(lengths).unsqueeze(-1)
    return found


def _sevennet_lengths(embedding: Any, factor: float, data: Any) -> Any:
    data = embedding(data)
    data["edge_embedding"] = data["edge_length"].double().unsqueeze(-1)
    return data


def _refuse_sevennet(embedding: Any, modules: list[nn.Module]) -> str | None:
    names = {getattr(module, "key_weight_input", "edge_embedding") for module in modules}
    return None if names == {"edge_embedding"} else f"is not what is read as {', '.join(sorted(names))}"


FAMILIES = (
    Family(
        "RadialEmbeddingBlock",
        ("conv_tp_weights", "conv_tp"),
        AcceleratedConvolution,
        lambda embedding: float(embedding.cutoff_fn.r_max),
        _mace_functions,
        _refuse_mace,
        _mace_lengths,
    ),
    Family(
        "BesselEdgeLengthEncoding",
        ("edge_mlp", "tp_scatter"),
        AcceleratedScatter,
        lambda embedding: 1.0,  # in units of the cutoff
        _nequip_functions,
        _refuse_nequip,
        _nequip_lengths,
        _nequip_factor,
    ),
    Family(
        "EdgeEmbedding",
        ("weight_nn", "convolution"),
        AcceleratedMessages,
        lambda embedding: float(
            vars(embedding.cutoff_function).get("cutoff_length") or embedding.cutoff_function.r_cut
        ),
        _sevennet_functions,
        _refuse_sevennet,
        _sevennet_lengths,
    ),
)


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

    def forward(self, *given: Any) -> Any:
        """``[E, 1]`` in place of ``[E, B]``."""
        return self.hand_on(self.original, self.behind, *given)


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
        vars(self).update(_table=table, _shared=shared, _made=(None, None))
        self.stand_in_for(original)

    def forward(self, lengths: Tensor) -> TabledWeights:
        """``[E, 1]`` lengths to the weights of their edges."""
        table: RadialTable = vars(self)["_table"]
        interval, coefficients = vars(self)["_shared"].of(table, lengths)
        rows = self._rows(table)
        return TabledWeights(rows, interval, coefficients.to(rows.dtype), 1)

    def _rows(self, table: RadialTable) -> Tensor:
        """``[R, W]``: made anew where gradients are to reach the weights, or where these are others.

        In float64 both times: of the roundings of a network in float32, divided by the distance of knots, come slopes,
        and forces are ten times as far off.
        """
        weights = list(table.parameters())
        if self.training and torch.is_grad_enabled() and any(p.requires_grad for p in weights):
            exact = made_at_knots(table.knots, through_float64(table.network), torch.float64)
            return exact.to(weights[0].dtype)
        now = [(p.data_ptr(), p._version, p.dtype) for p in weights]
        known, rows = vars(self)["_made"]
        if known != now:
            with torch.inference_mode(False), torch.no_grad():
                rows = table.made_once()
            vars(self)["_made"] = (now, rows)
        return rows


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
    for block in blocks:
        fused = block._modules[convolution]
        if fused is None or not isinstance(done.get(fused), family.convolution):
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
