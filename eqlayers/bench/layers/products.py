"""Products of features beside e3nn's, and scales of irreps."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ... import nn
from ...algebra import as_irreps
from ...lowering.path_lists import paths
from .pair import Pair, features, plain, second_features

#: Harmonics that features are multiplied with.
EDGE = "0e+1o+2e"


def _harmonics(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return (features(EDGE, rows),)


def _scalars(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    """One for each copy."""
    return (torch.randn(rows, as_irreps(irreps).num_irreps, dtype=torch.float64),)


def _their_linear(irreps: str) -> o3.TensorProduct:
    """Every path of features times harmonics, with a weight for each channel."""
    first, second = as_irreps(irreps), as_irreps(EDGE)
    return o3.TensorProduct(first, second, *paths(first, second, irreps_out=first))


def _one_by_one(irreps: str) -> o3.ElementwiseTensorProduct:
    whole = as_irreps(irreps)
    return o3.ElementwiseTensorProduct(whole, f"{whole.num_irreps}x0e")


def gated_cross(s: Any, a: Any, b: Any) -> Any:
    """A vector times a gate, and the product of two vectors: components of one channel."""
    cross = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
    return [s[0].silu() * c for c in cross]


def _formula(irreps: str) -> nn.FormulaLayer:
    vectors = as_irreps(irreps)
    return nn.FormulaLayer(gated_cross, {"s": f"{vectors.num_irreps}x0e", "a": vectors, "b": vectors}, vectors)


class PlainFormula(torch.nn.Module):
    """The formula in the plainest torch."""

    def forward(self, s: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """``[N, C]``, ``[N, 3 C]`` twice to ``[N, 3 C]``."""
        cross = torch.linalg.cross(a.unflatten(1, (-1, 3)), b.unflatten(1, (-1, 3)))
        return (torch.nn.functional.silu(s)[..., None] * cross).flatten(1)


def _vectors_twice(irreps: str, rows: int, device: torch.device) -> tuple[Any, ...]:
    return features(irreps, rows), features(irreps, rows)


PRODUCTS: dict[str, Pair] = {
    "ElementwiseTensorProduct": Pair(
        lambda i: nn.ElementwiseTensorProduct(i, i),
        lambda i: o3.ElementwiseTensorProduct(i, i),
        further=second_features,
    ),
    "FullTensorProduct": Pair(
        lambda i: nn.FullTensorProduct(i, EDGE), lambda i: o3.FullTensorProduct(i, EDGE), further=_harmonics
    ),
    "TensorSquare": Pair(nn.TensorSquare, lambda i: o3.TensorSquare(as_irreps(i))),
    "SO3Linear": Pair(lambda i: nn.SO3Linear(i, EDGE, i), _their_linear, further=_harmonics),
    "TensorDot": Pair(
        lambda i: nn.TensorDot(i, scaled=True),
        lambda i: o3.ElementwiseTensorProduct(i, i, ["0e"]),
        further=second_features,
    ),
    "SO3Scale": Pair(lambda i: nn.SO3Scale(i, "external"), _one_by_one, further=_scalars),
    "FormulaLayer": plain(
        _formula,
        lambda i: PlainFormula(),
        lambda i, rows: torch.randn(rows, as_irreps(i).num_irreps, dtype=torch.float64),
        _vectors_twice,
    ),
}
