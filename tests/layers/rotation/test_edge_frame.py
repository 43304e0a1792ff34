"""Frames of edges: what they are, their derivatives at the poles, and that what uses them rightly turns with edges."""

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers.functional import spherical_harmonics
from eqlayers.layers.rotation.lower import SEAM, blocks_start
from eqlayers.nn import EdgeFrame
from eqlayers.testing import check_derivatives
from tests.cases import default_dtype

EPS = torch.finfo(torch.float64).eps
UP = torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)


@pytest.fixture(autouse=True)
def _float64():
    with default_dtype(torch.float64):
        yield


def block(flat: Tensor, l: int) -> Tensor:
    return flat[..., blocks_start(l) : blocks_start(l + 1)].unflatten(-1, (2 * l + 1, 2 * l + 1))


def directions() -> Tensor:
    """Axes, what is near the poles and near the seam, and random ones of several lengths."""
    near = torch.tensor(
        [[1e-3, 1, 0], [0, -1, 1e-3], [1e-8, 1, 1e-8], [1e-8, -1, 0], [0, -0.37, 0.93], [0.9, -0.371, 0]]
    )
    return torch.cat([torch.eye(3), -torch.eye(3), near, torch.randn(8, 3), 1e4 * torch.randn(2, 3)])


def test_edges_point_along_y() -> None:
    vectors = directions()
    found = block(EdgeFrame(1)(vectors), 1)
    units = vectors / vectors.norm(dim=1, keepdim=True)
    torch.testing.assert_close((found @ units[..., None])[..., 0], UP.expand_as(units), rtol=0, atol=20 * EPS)
    torch.testing.assert_close(torch.linalg.det(found), torch.ones(len(found)), rtol=0, atol=20 * EPS)


def test_blocks_are_those_of_one_rotation() -> None:
    vectors = directions()
    blocks = EdgeFrame(5)(vectors)
    assert blocks.shape == (len(vectors), EdgeFrame(5).dim)
    for l in range(6):
        wanted = o3.Irrep(l, 1).D_from_matrix(block(blocks, 1))
        torch.testing.assert_close(block(blocks, l), wanted, rtol=0, atol=1e-6)  # e3nn's angles at the poles
        wanted = spherical_harmonics(l, vectors, True, "norm")
        torch.testing.assert_close(block(blocks, l)[:, l], wanted, rtol=0, atol=100 * EPS)
        one = torch.eye(2 * l + 1).expand(len(vectors), -1, -1)
        torch.testing.assert_close(block(blocks, l) @ block(blocks, l).mT, one, rtol=0, atol=100 * EPS)


def test_float32_is_good_to_its_digits_everywhere() -> None:
    vectors = torch.cat([directions(), torch.randn(200, 3)])
    found = EdgeFrame(4)(vectors.float()).double()
    wanted = EdgeFrame(4)(vectors.float().double())
    torch.testing.assert_close(found, wanted, rtol=0, atol=60 * torch.finfo(torch.float32).eps)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    "vector",
    [
        [0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [1e-3, 1.0, -2e-3], [2e-3, -1.0, 1e-3], [1e-6, -1.0, 0.0], [1e-6, 1.0, 1e-7],
        [1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, -1.0], [0.7, -0.4, 0.1],
    ],
)  # fmt: skip
def test_derivatives_at_the_poles_and_along_the_axes(vector: list[float]) -> None:
    check_derivatives(EdgeFrame(2), [torch.tensor([vector], requires_grad=True)], order=3, max_elements=5)


def test_the_zero_vector() -> None:
    """Harmonics have this rule: l = 0 stays, others and all derivatives are 0; and so for those that count as zero."""
    vectors = torch.tensor([[0.0, 0.0, 0.0], [1e-60, 0.0, 0.0]], requires_grad=True)
    found = EdgeFrame(2)(vectors)
    assert bool((found[:, 0] == 1).all())
    assert not found[:, 1:].any()
    (first,) = torch.autograd.grad(found.sum(), vectors, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), vectors, create_graph=True)
    (third,) = torch.autograd.grad(second.sum(), vectors)
    assert not first.any()
    assert not second.any()
    assert not third.any()


def test_tiny_and_huge_vectors_have_frames() -> None:
    vectors = torch.randn(5, 3)
    wanted = EdgeFrame(3)(vectors)
    for length in (1e-40, 1e-5, 1e5, 1e100):
        torch.testing.assert_close(EdgeFrame(3)(length * vectors), wanted, rtol=0, atol=60 * EPS)


# -- what uses frames rightly -----------------------------------------------------------------------------------------


DEGREES = 3


def that_commutes_with_the_axis() -> Tensor:
    """A matrix that commutes with rotations about y, and mixes degrees."""
    made = torch.Generator().manual_seed(3)
    indices = [(l, m) for l in range(DEGREES + 1) for m in range(-l, l + 1)]
    symmetric, across = torch.randn(2, DEGREES + 1, DEGREES + 1, DEGREES + 1, generator=made)
    matrix = torch.zeros(len(indices), len(indices))
    for i, (l, m) in enumerate(indices):
        for j, (k, n) in enumerate(indices):
            if m == n:
                matrix[i, j] = symmetric[l, k, abs(m)]
            elif m == -n:
                matrix[i, j] = across[l, k, abs(m)] * (1 if m > 0 else -1)
    return matrix


def mixed(vectors: Tensor, matrix: Tensor) -> Tensor:
    """D^T M D."""
    flat = EdgeFrame(DEGREES)(vectors)
    full = torch.stack([torch.block_diag(*(block(row, l) for l in range(DEGREES + 1))) for row in flat])
    return full.mT @ matrix @ full


def test_maps_that_commute_with_the_axis_are_equivariant() -> None:
    vectors, turn, matrix = directions()[:18], o3.rand_matrix(), that_commutes_with_the_axis()
    whole = o3.Irreps("0e + 1e + 2e + 3e").D_from_matrix(turn)
    wanted = whole @ mixed(vectors, matrix) @ whole.T
    torch.testing.assert_close(mixed(vectors @ turn.T, matrix), wanted, rtol=0, atol=1e-11)


def test_they_have_no_seam() -> None:
    """Value, first and second derivatives agree on both sides."""
    made, matrix, step = torch.randn(3, 16, 16), that_commutes_with_the_axis(), 1e-9

    def total(vector: Tensor) -> Tensor:
        return (mixed(vector[None], matrix)[0] * made).sum((1, 2))

    for angle in (0.0, 1.0, 2.5):
        height = torch.tensor([SEAM - step, SEAM + step])
        wide = (1 - height**2).sqrt()
        sides = torch.stack([wide * torch.tensor(angle).cos(), height, wide * torch.tensor(angle).sin()], 1)
        frames = EdgeFrame(1)(sides)
        assert float((frames[0] - frames[1]).abs().max()) > 0.1, "both points are in one chart"
        for derive in (total, torch.func.jacrev(total), torch.func.jacfwd(torch.func.jacrev(total))):
            below, above = (derive(side) for side in sides)
            scale = float(below.abs().max())
            torch.testing.assert_close(below, above, rtol=0, atol=100 * step * scale)


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_any_leading_axes() -> None:
    vectors = torch.randn(2, 3, 3)
    frame = EdgeFrame(2)
    assert frame(vectors).shape == (2, 3, 35)
    torch.testing.assert_close(frame(vectors)[1, 2], frame(vectors[1, 2]), rtol=0, atol=4 * EPS)
    assert EdgeFrame(0)(vectors).tolist() == torch.ones(2, 3, 1).tolist()
