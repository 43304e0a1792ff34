"""Layers of the catalogue in `eqlayers bench layers`: this package's beside e3nn's, or beside the plainest torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from e3nn import nn as theirs_nn
from e3nn import o3
from e3nn.io import CartesianTensor as TheirTensor
from e3nn.math import soft_one_hot_linspace
from torch import Tensor

from .. import nn
from ..algebra import as_irreps
from ..functional.product import chosen
from ..graph import Graph
from .implementation import OURS, default_dtype
from .layer_cases import CATALOGUE_BESIDE_TORCH, PLAIN, LayerCase
from .layer_subjects import Candidate, Makers, Outputs, Subject, atoms_and_edges, leaf

#: The symmetry of the tensor of elasticity, 2x0e + 2x2e + 1x4e.
ELASTICITY = "ijkl=jikl=klij"
#: Of an attention.
HEADS = 4
#: From irreps, as text, to what is called with the moving operand.
Maker = Callable[[str], Any]


def _features(irreps: str, rows: int) -> Tensor:
    return torch.randn(rows, as_irreps(irreps).dim, dtype=torch.float64)


def _lengths(irreps: str, rows: int) -> Tensor:
    return 0.5 + 4 * torch.rand(rows, dtype=torch.float64)


def _vectors(irreps: str, rows: int) -> Tensor:
    return torch.randn(rows, 3, dtype=torch.float64)


def _nothing(rows: int, device: torch.device) -> tuple[Any, ...]:
    return ()


@dataclass(frozen=True)
class Pair:
    """A layer and its peer.

    Attributes:
        ours, theirs: Make them; their parameters have equal names.
        moving: From irreps and a number of rows to the operand.
        further: From a number of rows to what they are called with besides, float64 tensors with gradients or graphs.
    """

    ours: Maker
    theirs: Maker
    moving: Callable[[str, int], Tensor] = _features
    further: Callable[[int, torch.device], tuple[Any, ...]] = _nothing


class PlainNorm(torch.nn.Module):
    """Each irreps group over the root of its mean square, in the plainest torch; even scalars by torch's layer norm.

    Args:
        irreps: Of the features.
        centred: Whether even scalars have their mean taken off and a bias, or are like the others.
    """

    def __init__(self, irreps: str, centred: bool = False) -> None:
        super().__init__()
        self.irreps, self.centred = as_irreps(irreps), centred
        self.weight = torch.nn.Parameter(torch.ones(self.irreps.num_irreps))
        if centred:
            self.bias = torch.nn.Parameter(torch.zeros(self.irreps.count("0e")))

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]``."""
        out, first, scalars = [], 0, 0
        for part, (mul, ir) in zip(self.irreps.slices(), self.irreps, strict=True):
            weight = self.weight[first : first + mul]
            if self.centred and ir.is_scalar():
                bias = self.bias[scalars : scalars + mul]
                out.append(torch.nn.functional.layer_norm(x[:, part], (mul,), weight, bias, 1e-5))
                scalars += mul
            else:
                block = x[:, part].reshape(-1, mul, ir.dim)
                scale = (block.square().mean((1, 2), keepdim=True) + 1e-5).rsqrt()
                out.append((block * scale * weight[:, None]).flatten(1))
            first += mul
        return torch.cat(out, 1)


class PlainAttention(torch.nn.Module):
    """Softmax over the edges into each node and the weighted sum of messages, in the plainest torch."""

    def __init__(self, irreps: str, heads: int) -> None:
        super().__init__()
        self.widths, self.heads = [group.dim for group in as_irreps(irreps)], heads
        self.sink = torch.nn.Parameter(torch.zeros(heads))

    def forward(self, values: Tensor, logits: Tensor, graph: Graph) -> Tensor:
        """``[E, dim]`` to ``[N, dim]``."""
        dst = graph.edge_index[1]
        sink = self.sink.expand(graph.num_dst, -1)
        top = sink.detach().scatter_reduce(0, dst[:, None].expand_as(logits), logits.detach(), "amax")
        parts = (logits - top[dst]).exp()
        shares = parts / (sink - top).exp().index_add(0, dst, parts)[dst]
        groups = [v.unflatten(1, (self.heads, -1)) * shares[..., None] for v in values.split(self.widths, 1)]
        messages = torch.cat([group.flatten(1) for group in groups], 1)
        return messages.new_zeros(graph.num_dst, messages.shape[1]).index_add(0, dst, messages)


def _heads_of_edges(rows: int, device: torch.device) -> tuple[Any, ...]:
    """Logits and a graph, which networks make once for all layers."""
    pos, index = atoms_and_edges(rows)
    return torch.randn(rows, HEADS, dtype=torch.float64), Graph(index.to(device), len(pos), len(pos))


def _gates(irreps: str) -> tuple[Any, ...]:
    scalars = o3.Irreps([(mul, ir) for mul, ir in as_irreps(irreps) if ir.l == 0])
    gated = o3.Irreps([(mul, ir) for mul, ir in as_irreps(irreps) if ir.l > 0])
    silu, sigmoid = torch.nn.functional.silu, torch.sigmoid
    return scalars, [silu] * len(scalars), o3.Irreps([(gated.num_irreps, "0e")]), [sigmoid], gated


def _gated_features(irreps: str, rows: int) -> Tensor:
    return torch.randn(rows, theirs_nn.Gate(*_gates(irreps)).irreps_in.dim, dtype=torch.float64)


def _acts(irreps: str) -> list[Any]:
    """A function for each group of scalars."""
    found = {(0, 1): torch.nn.functional.silu, (0, -1): torch.tanh}
    return [found.get((ir.l, ir.p)) for _, ir in as_irreps(irreps)]


def _sphere(irreps: str) -> tuple[Any, ...]:
    """A signal on the sphere, a function, and the points of the smallest grid."""
    return as_irreps(irreps), torch.tanh, 2 * as_irreps(irreps).lmax + 2


def _rotations(irreps: str) -> tuple[Any, ...]:
    """Degrees of signals on the rotations, a function, and the resolution of a grid."""
    lmax = as_irreps(irreps).lmax
    return lmax, lmax, torch.tanh, lmax + 1


def _last(irreps: str) -> tuple[Any, ...]:
    """Arguments of a layer that takes out the last group."""
    whole = as_irreps(irreps)
    return whole, [whole[-1:]], [(len(whole) - 1,)]


def _elasticities(irreps: str, rows: int) -> Tensor:
    return torch.randn(rows, 21, dtype=torch.float64)


def _their_basis(name: str) -> Maker:
    return lambda irreps: lambda r: soft_one_hot_linspace(r, 0.0, 5.0, 16, name, cutoff=True)


def _their_angles(irreps: str) -> Callable[[Tensor], Tensor]:
    def run(angles: Tensor) -> Tensor:
        with default_dtype(angles.dtype):  # e3nn makes its generators in it, at every call
            return as_irreps(irreps).D_from_angles(*angles.unbind(-1))

    return run


def _their_tensor(formula: str) -> Callable[[Tensor], Tensor]:
    tensor = TheirTensor(formula)
    products = tensor.reduced_tensor_products()
    return lambda x: tensor.to_cartesian(x, products)


PAIRS: dict[str, Pair] = {
    "Linear": Pair(lambda i: nn.Linear(i, i), lambda i: o3.Linear(i, i)),
    "Norm": Pair(nn.Norm, o3.Norm),
    "BatchNorm": Pair(nn.BatchNorm, theirs_nn.BatchNorm),
    "LayerNorm": Pair(nn.LayerNorm, lambda i: PlainNorm(i, centred=True)),
    "RMSNorm": Pair(nn.RMSNorm, PlainNorm),
    "Gate": Pair(lambda i: nn.Gate(*_gates(i)), lambda i: theirs_nn.Gate(*_gates(i)), _gated_features),
    "Activation": Pair(lambda i: nn.Activation(i, _acts(i)), lambda i: theirs_nn.Activation(i, _acts(i))),
    "S2Activation": Pair(lambda i: nn.S2Activation(*_sphere(i)), lambda i: theirs_nn.S2Activation(*_sphere(i))),
    "SO3Activation": Pair(
        lambda i: nn.SO3Activation(*_rotations(i)), lambda i: theirs_nn.SO3Activation(*_rotations(i))
    ),
    "NormActivation": Pair(
        lambda i: nn.NormActivation(as_irreps(i), torch.sigmoid),
        lambda i: theirs_nn.NormActivation(as_irreps(i), torch.sigmoid),
    ),
    "Extract": Pair(lambda i: nn.Extract(*_last(i)), lambda i: theirs_nn.Extract(*_last(i))),
    "CartesianTensor": Pair(
        lambda i: nn.CartesianTensor(ELASTICITY).to_cartesian, lambda i: _their_tensor(ELASTICITY), _elasticities
    ),
    "GaussianBasis": Pair(lambda i: nn.GaussianBasis(16, 5.0, None), _their_basis("gaussian"), _lengths),
    "CosineBasis": Pair(lambda i: nn.CosineBasis(16, 5.0, None), _their_basis("cosine"), _lengths),
    "SmoothFiniteBasis": Pair(lambda i: nn.SmoothFiniteBasis(16, 5.0, None), _their_basis("smooth_finite"), _lengths),
    "FourierBasis": Pair(lambda i: nn.FourierBasis(16, 5.0, None), _their_basis("fourier"), _lengths),
    "AttentionAggregate": Pair(
        lambda i: nn.AttentionAggregate(i, HEADS), lambda i: PlainAttention(i, HEADS), further=_heads_of_edges
    ),
    "WignerD": Pair(lambda i: nn.WignerD(i, "angles"), _their_angles, _vectors),
}


def build_row(case: LayerCase, device: torch.device, backend: str | None = None) -> Subject:
    """Draw the operand of a case, and prepare both; random numbers depend on the case alone."""
    torch.manual_seed(0)
    pair, irreps, dtype = PAIRS[case.layer], str(case.options["irreps"]), getattr(torch, case.dtype)
    peer = PLAIN if case.layer in CATALOGUE_BESIDE_TORCH else "e3nn"
    given = pair.moving(irreps, case.rows).to(device)
    further = pair.further(case.rows, device)

    def theirs(dtype: torch.dtype) -> Any:
        torch.manual_seed(0)
        with default_dtype(torch.float64):  # the same weights in every dtype
            layer = pair.theirs(irreps)
        if isinstance(layer, torch.nn.Module):
            return layer.to(device, dtype)
        with default_dtype(dtype):
            return pair.theirs(irreps)

    def candidate(name: str, layer: Any, dtype: torch.dtype, note: str) -> Candidate:
        weights = dict(layer.named_parameters()) if isinstance(layer, torch.nn.Module) else {}
        others = [leaf(t.to(device), dtype) if isinstance(t, Tensor) else t for t in further]
        inputs = (*(weights[n] for n in sorted(weights)), *(t for t in others if isinstance(t, Tensor)))
        return Candidate(name, lambda x: _tuple(layer(x, *others)), leaf(given, dtype), inputs, note)

    def own() -> Candidate:
        layer, other = pair.ours(irreps), theirs(dtype)
        if isinstance(layer, torch.nn.Module):
            layer.to(device, dtype)
            layer.load_state_dict(other.state_dict() if isinstance(other, torch.nn.Module) else {}, strict=False)
        return candidate(OURS, layer, dtype, chosen(device.type, dtype, backend, ""))

    def exact() -> Iterator[Candidate]:
        yield candidate(peer, theirs(torch.float64), torch.float64, "")

    makers: Makers = {OURS: own, peer: lambda: candidate(peer, theirs(dtype), dtype, "eager")}
    constants = tuple(t.edge_index for t in further if isinstance(t, Graph))
    return Subject(makers, exact, constants, dict.fromkeys(case.directions, 0))


def _tuple(found: Any) -> Outputs:
    return (found,) if isinstance(found, Tensor) else tuple(found)
