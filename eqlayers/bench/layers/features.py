"""Benchmarked layers with their peers (e3nn or plain torch): norms, activations, gates, splits and reorderings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import nn as theirs
from e3nn import o3
from torch import Tensor

from ... import nn
from ...irreps.algebra import as_irreps, representation_matrix
from .pair import Pair, blocks, features, joined, plain, second_features, twin

SILU, TANH, SIGMOID = torch.nn.functional.silu, torch.tanh, torch.sigmoid
#: Probability of dropout, and atoms of each graph for DropPath.
PROBABILITY, ATOMS = 0.5, 20


# -- norms ------------------------------------------------------------------------------------------------------------


class PlainNorm(torch.nn.Module):
    """Divide each group by its root mean square; with ``centred``, even scalars by torch's layer norm."""

    def __init__(self, irreps: str, centred: bool = False) -> None:
        super().__init__()
        self.irreps, self.centred = as_irreps(irreps), centred
        self.weight = torch.nn.Parameter(torch.ones(self.irreps.num_irreps))
        if centred:
            self.bias = torch.nn.Parameter(torch.zeros(self.irreps.count("0e")))

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[N, dim]`` to features of the same shape."""
        out, scalars = [], 0
        weights = self.weight.split([mul for mul, _ in self.irreps])
        for block, weight, (mul, ir) in zip(blocks(x, self.irreps), weights, self.irreps, strict=True):
            if self.centred and ir.is_scalar():
                bias = self.bias[scalars : scalars + mul]
                out.append(torch.nn.functional.layer_norm(block.flatten(1), (mul,), weight, bias, 1e-5))
                scalars += mul
            else:
                out.append(block * (block.square().mean((1, 2), keepdim=True) + 1e-5).rsqrt() * weight[:, None])
        return joined(out)


class PlainBatchNorm(torch.nn.Module):
    """Divide each copy by its root mean square over the batch, with running averages."""

    running_squared_norm: Tensor

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        self.weight = torch.nn.Parameter(torch.ones(self.irreps.num_irreps))
        self.register_buffer("running_squared_norm", torch.ones(self.irreps.num_irreps))

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[N, dim]`` to features of the same shape."""
        groups = blocks(x, self.irreps)
        means = [block.square().mean((0, 2)) for block in groups]
        with torch.no_grad():
            self.running_squared_norm.lerp_(torch.cat(means), 0.1)
        weights = self.weight.split([mul for mul, _ in self.irreps])
        each = zip(groups, means, weights, strict=True)
        return joined(block * ((mean + 1e-5).rsqrt() * weight)[:, None] for block, mean, weight in each)


NORMS: dict[str, Pair] = {
    **twin("Norm", lambda i: (i,)),
    **twin("BatchNorm", lambda i: (i,)),
    "BatchRMSNorm": plain(nn.BatchRMSNorm, PlainBatchNorm),
    "LayerNorm": plain(nn.LayerNorm, lambda i: PlainNorm(i, centred=True)),
    "RMSNorm": plain(nn.RMSNorm, PlainNorm),
    "MeanSquaredNorm": plain(
        nn.MeanSquaredNorm, lambda i: lambda x: torch.stack([block.square().mean((1, 2)) for block in blocks(x, i)], 1)
    ),
}


# -- activations, gates, and layers that leave parts out --------------------------------------------------------------


def _gates(irreps: str) -> tuple[Any, ...]:
    scalars = o3.Irreps([(mul, ir) for mul, ir in as_irreps(irreps) if ir.l == 0])
    gated = o3.Irreps([(mul, ir) for mul, ir in as_irreps(irreps) if ir.l > 0])
    return scalars, [SILU] * len(scalars), o3.Irreps([(gated.num_irreps, "0e")]), [SIGMOID], gated


def _plain_gate(irreps: str) -> Callable[[Tensor], Tensor]:
    """A gate with exactly normalised activations in plain torch: ``[N, gates + dim]`` to ``[N, dim]``."""
    whole = as_irreps(irreps)
    even, gate = nn.NormalizedActivation("silu").factor, nn.NormalizedActivation("sigmoid").factor
    widths = [mul for mul, ir in whole if ir.l > 0]

    def run(x: Tensor) -> Tensor:
        factors = iter((torch.sigmoid(x[:, : sum(widths)]) * gate).split(widths, 1))
        groups = zip(blocks(x[:, sum(widths) :], whole), whole, strict=True)
        return joined(SILU(g) * even if ir.l == 0 else g * next(factors)[..., None] for g, (_, ir) in groups)

    return run


def _lmax(irreps: str) -> int:
    return int(as_irreps(irreps).lmax)


class Drawn(torch.nn.Module):
    """A layer called with the same random seed each time, so that results can be compared."""

    def __init__(self, layer: Callable[..., Tensor]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *operands: Tensor) -> Tensor:
        """Call the layer after setting the seed."""
        torch.manual_seed(0)
        return self.layer(*operands)


def plain_drop_path(x: Tensor, batch: Tensor) -> Tensor:
    """DropPath in plain torch, one random factor for each graph: ``[N, dim]``, ``[N]`` to ``[N, dim]``."""
    factors = x.new_empty(int(batch.max()) + 1, 1).bernoulli_(1 - PROBABILITY) / (1 - PROBABILITY)
    return x * factors[batch]


def _as_wide_as(layer: Callable[[str], Any]) -> Callable[[str, int], Tensor]:
    """Function that draws features of a layer's ``irreps_in``."""
    return lambda irreps, rows: features(str(layer(irreps).irreps_in), rows)


NONLINEAR: dict[str, Pair] = {
    **twin("Gate", _gates, moving=_as_wide_as(lambda i: nn.Gate(*_gates(i)))),
    "GatedNonlinearity": plain(nn.GatedNonlinearity, _plain_gate, _as_wide_as(nn.GatedNonlinearity)),
    **twin("Activation", lambda i: (i, [{"0e": SILU, "0o": TANH}.get(str(ir)) for _, ir in as_irreps(i)])),
    **twin("S2Activation", lambda i: (as_irreps(i), TANH, 2 * _lmax(i) + 2)),  # points of the smallest grid
    **twin("SO3Activation", lambda i: (_lmax(i), _lmax(i), TANH, _lmax(i) + 1)),
    **twin("NormActivation", lambda i: (as_irreps(i), SIGMOID)),
    "Dropout": Pair(
        lambda i: Drawn(nn.Dropout(as_irreps(i), PROBABILITY)),
        lambda i: Drawn(theirs.Dropout(as_irreps(i), PROBABILITY)),
    ),
    "DropPath": plain(
        lambda i: Drawn(nn.DropPath(PROBABILITY)),
        lambda i: Drawn(plain_drop_path),
        further=lambda i, rows, device: ((torch.arange(rows) // ATOMS).to(device),),
    ),
}


# -- features taken apart, put together and in another order ----------------------------------------------------------


def _widths(irreps: Any) -> list[int]:
    return [group.dim for group in as_irreps(irreps)]


def _opposite(irreps: str) -> str:
    """The irreps in reverse order."""
    return str(o3.Irreps(list(reversed(as_irreps(irreps)))))


def _plain_basis(irreps: str) -> Callable[[Tensor], Tensor]:
    """Change of basis of each irrep by matrix products."""
    axes = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)
    exact = [representation_matrix(o3.Irreps([(1, ir)]), axes).T.contiguous() for _, ir in as_irreps(irreps)]
    known: dict[Any, list[Tensor]] = {}

    def run(x: Tensor) -> Tensor:
        matrices = known.setdefault((x.dtype, x.device), [matrix.to(x) for matrix in exact])
        each = zip(blocks(x, irreps), matrices, strict=True)
        return joined(block if len(matrix) == 1 else block @ matrix for block, matrix in each)

    return run


class Halves(torch.nn.Module):
    """Separate e3nn Linear maps of the first group and of the others."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        first, rest = as_irreps(irreps)[:1], as_irreps(irreps)[1:]
        self.width = first.dim
        self.parts = torch.nn.ModuleList([o3.Linear(first, first), o3.Linear(rest, rest)])

    def forward(self, x: Tensor) -> Tensor:
        """Features ``[N, dim]`` to features of the same shape."""
        return torch.cat([self.parts[0](x[:, : self.width]), self.parts[1](x[:, self.width :])], 1)


def _separable(irreps: str) -> nn.Separable:
    first, rest = as_irreps(irreps)[:1], as_irreps(irreps)[1:]
    return nn.Separable(irreps, [str(first), str(rest)], [nn.Linear(first, first), nn.Linear(rest, rest)])


RESHAPING: dict[str, Pair] = {
    **twin("Extract", lambda i: (as_irreps(i), [as_irreps(i)[-1:]], [(len(as_irreps(i)) - 1,)])),
    **twin("ExtractIr", lambda i: (as_irreps(i), as_irreps(i)[-1].ir)),
    **twin("Identity", lambda i: (i, i)),
    "Split": plain(
        lambda i: nn.Split(i, [str(group) for group in as_irreps(i)]), lambda i: lambda x: x.split(_widths(i), 1)
    ),
    "Merge": plain(lambda i: nn.Merge([i, i]), lambda i: lambda x, y: torch.cat([x, y], 1), further=second_features),
    "Sort": plain(
        lambda i: nn.Sort(_opposite(i)),
        lambda i: lambda x: torch.cat(x.split(_widths(_opposite(i)), 1)[::-1], 1),
        lambda i, rows: features(_opposite(i), rows),
    ),
    "Separable": Pair(_separable, Halves),
    "ChangeOfBasis": plain(nn.ChangeOfBasis, _plain_basis),
}
