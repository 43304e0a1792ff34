"""Rotations of features, frames of edges, and Cartesian tensors."""

from collections.abc import Callable
from functools import partial

import torch
from e3nn import o3
from torch import Tensor

import eqlayers.nn as nn

from .cases import ONE, features, row

IRREPS = "1x0o + 2x1o + 1x1e + 1x2e"
EVEN = "1x0e + 2x1e + 1x2e"
DEGREES = 2


class CartesianTensor(nn.CartesianTensor):
    """The way back from irreps."""

    def forward(self, tensor: Tensor) -> Tensor:
        return self.to_cartesian(tensor)


def quaternions(rows: int, generator: torch.Generator) -> Tensor:
    return torch.randn(rows, 4, generator=generator, dtype=torch.float64)


def orthogonal(rows: int, generator: torch.Generator) -> Tensor:
    """Matrices with both signs of the determinant."""
    return torch.linalg.qr(torch.randn(rows, 3, 3, generator=generator, dtype=torch.float64))[0].contiguous()


def with_matrices(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
    return features(x=IRREPS)(rows, generator) | {"rotation": orthogonal(rows, generator)}


def before_quaternions(value: Tensor, matrix: Tensor) -> Tensor:
    """A rotation of other axes before; an inversion has no quaternion, and even irreps do not see it."""
    back = o3.matrix_to_quaternion(matrix.T * torch.linalg.det(matrix))
    return o3.compose_quaternion(value, back.expand_as(value))


def full_even(value: Tensor, matrix: Tensor) -> Tensor:
    """The matrices of even irreps for a rotation of other axes before."""
    return value @ nn.WignerD(EVEN).D_from_matrix(matrix).T


def same(value: Tensor, matrix: Tensor) -> Tensor:
    """An operand that does not turn."""
    return value


def before(value: Tensor, matrix: Tensor) -> Tensor:
    """A rotation of other axes before."""
    return (value @ matrix.T).contiguous()


def full(value: Tensor, matrix: Tensor) -> Tensor:
    """The matrices of irreps for a rotation of other axes before."""
    other = nn.WignerD(IRREPS).D_from_matrix(matrix)
    return value @ other.T


def two_indices(value: Tensor, matrix: Tensor) -> Tensor:
    return torch.einsum("nij,ai,bj->nab", value, matrix, matrix)


def four_indices(value: Tensor, matrix: Tensor) -> Tensor:
    return torch.einsum("nijkl,ai,bj,ck,dl->nabcd", value, matrix, matrix, matrix, matrix)


def conjugated(value: Tensor, matrix: Tensor) -> Tensor:
    """A rotation seen from turned axes, as a matrix."""
    return (matrix @ value @ matrix.T).contiguous()


def conjugated_angles(value: Tensor, matrix: Tensor) -> Tensor:
    """Angles of a conjugated rotation."""
    return torch.stack(o3.matrix_to_angles(conjugated(o3.angles_to_matrix(*value.unbind(-1)), matrix)), -1)


def tensors(rank: int) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    def make(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {"tensor": torch.randn(rows, *[3] * rank, generator=generator, dtype=torch.float64)}

    return make


ABOUT_THE_AXIS = "a frame turns with the edge up to a rotation about it: D^T M D is equivariant, D is not"
angular = partial(row, family="Angular")
CASES = [
    angular(
        partial(nn.WignerD, IRREPS, "matrix"),
        full,
        inputs=lambda rows, generator: {"rotation": orthogonal(rows, generator)},
        layouts=ONE,
        order=2,
        rotation=before,
    ),
    angular(
        partial(nn.WignerD, EVEN, "quaternion"),
        full_even,
        special="of quaternions",
        inputs=lambda rows, generator: {"rotation": quaternions(rows, generator)},
        layouts=ONE,
        rotation=before_quaternions,
    ),
    angular(partial(nn.RotateFeatures, IRREPS, "matrix"), IRREPS, inputs=with_matrices, x=IRREPS, rotation=conjugated),
    angular(
        partial(nn.RotateFeatures, IRREPS, "quaternion", inverse=True),
        IRREPS,
        special="by quaternions",
        x=IRREPS,
        rotation="1x0e + 1x1e",
    ),
    angular(
        partial(nn.RotateFeatures, IRREPS, "angles", "sparse"),
        IRREPS,
        special="sparse",
        inputs=features(x=IRREPS, rotation="3x0e"),
        order=2,
        x=IRREPS,
        rotation=conjugated_angles,
    ),
    angular(
        partial(nn.EdgeFrame, DEGREES),
        same,
        layouts=ONE,
        lacks={"rotation": ABOUT_THE_AXIS, "inversion": ABOUT_THE_AXIS},
        vectors="1o",
    ),
    angular(partial(nn.CartesianTensor, "ij=ji"), "1x0e + 1x2e", inputs=tensors(2), layouts=ONE, tensor=two_indices),
    angular(
        partial(CartesianTensor, "ijkl=jikl=klij"),
        four_indices,
        special="to elasticity",
        layouts=ONE,
        tensor="2x0e + 2x2e + 1x4e",
    ),
]
