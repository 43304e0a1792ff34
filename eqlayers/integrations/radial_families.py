"""How MACE, NequIP and SevenNet compute radial functions and networks, so that tables can replace them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .kinds.convolution import AcceleratedConvolution, AcceleratedMessages, AcceleratedScatter
from .replacement import Replacement
from .structure import has_hooks, refuse_object


class Family(NamedTuple):
    """How a package passes functions of lengths to its radial networks.

    Attributes:
        embedding: Name of the class that computes the radial functions of lengths.
        block: Attributes of an interaction block: its radial network, its convolution.
        convolution: Class that replaces the convolution.
        cutoff: Function of the embedding: the length at which the radial functions end.
        functions: Function of the embedding, lengths ``[N]`` and, if they depend on species, `PairSpecies`: the radial
            functions ``[N, B]``.
        refuse: Function of the embedding and all modules: why there can be no table, or None.
        lengths: Function of the embedding, the factor and the embedding's arguments: what the replacement of the
            embedding returns, lengths in float64 divided by the factor, and pairs of species as a second column.
        factor: Function of the embedding and all modules: the number by which the model multiplies radial functions.
        readers: Attributes of a block with further networks that read the radial functions.
        joined: Attributes of a block with embeddings of sender and receiver species, which its networks also read.
        species: Function of the embedding, the blocks and all modules: atomic numbers, if networks depend on species.
        envelope_after: Function of the embedding: whether the block multiplies the weights by the envelope.
    """

    embedding: str
    block: tuple[str, str]
    convolution: type[Replacement]
    cutoff: Callable[[Any], float]
    functions: Callable[..., Tensor]
    refuse: Callable[[Any, list[nn.Module]], str | None]
    lengths: Callable[..., Any]
    factor: Callable[[Any, list[nn.Module]], float] = lambda embedding, modules: 1.0
    readers: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    species: Callable[[Any, list[nn.Module], list[nn.Module]], Tensor | None] = lambda embedding, blocks, modules: None
    envelope_after: Callable[[Any], bool] = lambda embedding: False


class PairSpecies(NamedTuple):
    """The species of the two atoms of each edge.

    Attributes:
        first, second: ``[N]`` indices of the senders' and the receivers' species.
        species: ``[S]`` atomic numbers.
    """

    first: Tensor
    second: Tensor
    species: Tensor

    def one_hot(self, like: Tensor) -> Tensor:
        """``[S, S]``, a row for each species, in the dtype and on the device of a tensor."""
        return torch.eye(len(self.species), dtype=like.dtype, device=like.device)


def _mace_functions(embedding: Any, lengths: Tensor, pairs: PairSpecies | None = None) -> Tensor:
    others: Any = (None, None, None)
    if pairs is not None:  # as of a graph whose nodes are one of each species
        others = (pairs.one_hot(lengths), torch.stack(pairs[:2]), pairs.species)
    return embedding(lengths.unsqueeze(1), *others)[0]


def _mace_lengths(
    embedding: Any,
    factor: float,
    edge_lengths: Tensor,
    node_attrs: Tensor,
    edge_index: Tensor,
    atomic_numbers: Tensor,
    pairs: str | None = None,
) -> Any:
    columns = edge_lengths.double()
    if pairs:  # not in float64: blocks join more columns
        first, second = node_attrs.argmax(1)[edge_index]
        if pairs == "either order":
            first, second = torch.minimum(first, second), torch.maximum(first, second)
        codes = (first * node_attrs.shape[1] + second).unsqueeze(1)
        columns = torch.cat([edge_lengths.to(torch.promote_types(edge_lengths.dtype, torch.float32)), codes], 1)
    return columns, embedding.cutoff_fn(edge_lengths) if _mace_envelope_after(embedding) else None


def _mace_envelope_after(embedding: Any) -> bool:
    return not getattr(embedding, "apply_cutoff", True)


def _mace_species(embedding: Any, blocks: list[nn.Module], modules: list[nn.Module]) -> Tensor | None:
    joined = any(hasattr(block, "source_embedding") for block in blocks)
    if not joined and not hasattr(embedding, "distance_transform"):
        return None
    species = (getattr(module, "atomic_numbers", None) for module in modules)
    return next((one for one in species if isinstance(one, Tensor)), None)


def _refuse_mace(embedding: Any, modules: list[nn.Module]) -> str | None:
    for module in modules:
        if hasattr(module, "conv_tp_weights") and hasattr(module, "linear_down"):
            return f"is joined with features of nodes in {type(module).__name__}"
    return None


def _nequip_functions(embedding: Any, lengths: Tensor) -> Tensor:
    return embedding({embedding.norm_length_field: lengths.unsqueeze(1)})[embedding.edge_invariant_field]


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
    theirs = {type(m).__name__ for m in modules if hasattr(m, "irreps_in") and hasattr(m, "_init_irreps")}
    strange = sorted(theirs - _NEQUIP)
    return f"may be read by {', '.join(strange)}, which this package does not know" if strange else None


def _nequip_factor(embedding: Any, modules: list[nn.Module]) -> float:
    factors: list[Any] = [m for m in modules if type(m).__name__ == "ApplyFactor"]
    return math.prod(float(m.factor) for m in factors if m.in_field == embedding.edge_invariant_field)


def _sevennet_functions(embedding: Any, lengths: Tensor) -> Tensor:
    return embedding.basis_function(lengths) * embedding.cutoff_function(lengths).unsqueeze(-1)


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
        readers=("density_fn",),
        joined=("source_embedding", "target_embedding"),
        species=_mace_species,
        envelope_after=_mace_envelope_after,
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


def refuse_calls(embedding: nn.Module, network: nn.Module) -> str | None:
    """Why a table cannot replace a network behind an embedding: hooks or patched modules inside of them; or None."""
    for module in (m for one in (embedding, network) for m in one.modules()):
        if has_hooks(module):
            return f"has hooks on {type(module).__name__}, which would see lengths and tables"
        if (reason := refuse_object(module)) is not None and "parametrized" not in reason:
            return reason
    return None


def refuse_holder(embedding: nn.Module, holder: nn.Module | None) -> str | None:
    """Why the module that calls an embedding or network is not of the embedding's package, or None."""
    if holder is None:
        return "has no place in a model"
    package = type(embedding).__module__.split(".")[0]
    theirs = getattr(type(holder).forward, "__module__", "").split(".")[0]
    if theirs in (package, "torch"):
        return None
    return f"is read by {type(holder).__name__}, whose forward is not {package}'s"
