"""Matrices of rotations against e3nn's, their derivatives at special rotations, and features turned by them."""

import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers.errors import ConfigError, DTypeError, ShapeError
from eqlayers.functional import angles_to_quaternion, matrix_to_quaternion, wigner_blocks
from eqlayers.irreps.layout import to_ir_mul
from eqlayers.layers.rotation.lower import LARGEST_DEGREE, blocks_start
from eqlayers.nn import EdgeFrame, RotateFeatures, WignerD
from eqlayers.testing import check_derivatives
from tests.cases import default_dtype

IRREPS = o3.Irreps("3x1o + 2x0e + 1x0o + 2x2e + 1x3e + 2x1o")
EPS = torch.finfo(torch.float64).eps


@pytest.fixture(autouse=True)
def _float64():
    with default_dtype(torch.float64):
        yield


def block(flat: Tensor, l: int) -> Tensor:
    return flat[..., blocks_start(l) : blocks_start(l + 1)].unflatten(-1, (2 * l + 1, 2 * l + 1))


def special() -> Tensor:
    """Quaternions of no rotation, of half turns, and of those where Euler angles have poles, and random ones."""
    poles = [angles_to_quaternion(*torch.tensor(a)) for a in ([0.3, 0.0, 0.2], [0.3, torch.pi, 0.2], [0.0, 1e-9, 0.0])]
    return torch.cat([torch.eye(4), torch.stack(poles), o3.rand_quaternion(8)])


# -- numbers ----------------------------------------------------------------------------------------------------------


def test_blocks_are_e3nns() -> None:
    """To degree 8 at 1e-13; e3nn's exponentials of generators are orthogonal to 5e-14 themselves."""
    angles = o3.rand_angles(6)
    found = wigner_blocks(angles_to_quaternion(*angles), 8, backend="torch")
    assert found.shape == (6, 969)
    for l in range(9):
        torch.testing.assert_close(block(found, l), o3.wigner_D(l, *angles), rtol=0, atol=1e-13)


def test_the_largest_degree() -> None:
    angles = o3.rand_angles(2)
    found = wigner_blocks(angles_to_quaternion(*angles), LARGEST_DEGREE, backend="torch")
    wanted = o3.wigner_D(LARGEST_DEGREE, *angles)
    torch.testing.assert_close(block(found, LARGEST_DEGREE), wanted, rtol=0, atol=3e-13)


def matrix_of(quaternions: Tensor) -> Tensor:
    """Matrix of a unit quaternion, by the definition."""
    w, x, y, z = quaternions.unbind(-1)
    rows = [
        [w * w + x * x - y * y - z * z, 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), w * w - x * x + y * y - z * z, 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z],
    ]
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def test_degree_1_is_the_matrix() -> None:
    quaternions = special()
    found = block(wigner_blocks(quaternions, 1), 1)
    torch.testing.assert_close(found, matrix_of(quaternions), rtol=0, atol=20 * EPS)


def test_matrices_are_orthogonal_and_multiply() -> None:
    a, b = o3.rand_quaternion(5), o3.rand_quaternion(5)
    found, second, both = (wigner_blocks(q, 6) for q in (a, b, o3.compose_quaternion(a, b)))
    for l in range(7):
        one = torch.eye(2 * l + 1).expand(5, -1, -1)
        torch.testing.assert_close(block(found, l) @ block(found, l).mT, one, rtol=0, atol=100 * EPS)
        torch.testing.assert_close(block(found, l) @ block(second, l), block(both, l), rtol=0, atol=200 * EPS)


def test_length_and_sign_of_a_quaternion_say_nothing() -> None:
    quaternions = o3.rand_quaternion(4)
    found = wigner_blocks(quaternions, 3)
    torch.testing.assert_close(wigner_blocks(-3e5 * quaternions, 3), found, rtol=0, atol=50 * EPS)
    torch.testing.assert_close(wigner_blocks(2e-5 * quaternions, 3), found, rtol=0, atol=50 * EPS)


def test_the_zero_quaternion_has_finite_values_and_derivatives() -> None:
    quaternion = torch.zeros(4, requires_grad=True)
    found = wigner_blocks(quaternion, 2)
    assert found.tolist() == [1.0] + [0.0] * 34
    (first,) = torch.autograd.grad(found.sum(), quaternion, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), quaternion)
    assert not first.any()
    assert not second.any()


def test_matrices_to_quaternions_in_every_chart() -> None:
    quaternions = special()
    found = matrix_to_quaternion(block(wigner_blocks(quaternions, 1), 1))
    alike = (found * quaternions).sum(-1, keepdim=True).sign()
    torch.testing.assert_close(found * alike, quaternions, rtol=0, atol=20 * EPS)
    assert matrix_to_quaternion(torch.zeros(0, 3, 3)).shape == (0, 4)


def test_angles_to_quaternions_are_e3nns() -> None:
    angles = o3.rand_angles(5)
    torch.testing.assert_close(angles_to_quaternion(*angles), o3.angles_to_quaternion(*angles), rtol=0, atol=10 * EPS)
    assert angles_to_quaternion(angles[0][:, None], angles[1], angles[2][0]).shape == (5, 5, 4)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("number", range(5))
def test_derivatives_at_special_rotations(number: int) -> None:
    """Rotations near no rotation, half turns, and the pole of Euler angles, through their matrices.

    Backend torch compiles nothing; the catalogue compares the derivatives of its kernels with it.
    """
    base = matrix_of(special())[number]
    across = torch.tensor(
        [[[0.0, 0, 0], [0, 0, -1], [0, 1, 0]], [[0, 0, 1], [0, 0, 0], [-1, 0, 0]], [[0, -1, 0], [1, 0, 0], [0, 0, 0]]]
    )

    def run(vector: Tensor) -> Tensor:
        turn = torch.eye(3) + (term := torch.einsum("i,ijk->jk", vector, across))
        for k in range(2, 9):
            term = term @ torch.einsum("i,ijk->jk", vector, across) / k
            turn = turn + term
        return wigner_blocks(matrix_to_quaternion(turn @ base, backend="torch"), 2, backend="torch")

    check_derivatives(run, [torch.zeros(3, requires_grad=True)], order=3, max_elements=6)


# -- layers -----------------------------------------------------------------------------------------------------------


def test_full_matrices_are_e3nns() -> None:
    layer, matrices = WignerD(IRREPS), o3.rand_matrix(4)
    matrices[::2] *= -1
    wanted = IRREPS.D_from_matrix(matrices)
    torch.testing.assert_close(layer(matrices), wanted, rtol=0, atol=1e-13)
    torch.testing.assert_close(layer.D_from_matrix(matrices), wanted, rtol=0, atol=1e-13)
    times, quaternions, angles = torch.tensor([0, 1, 2, 3]), o3.rand_quaternion(4), o3.rand_angles(4)
    wanted = IRREPS.D_from_quaternion(quaternions, times)
    torch.testing.assert_close(layer.D_from_quaternion(quaternions, times), wanted, rtol=0, atol=1e-13)
    wanted = IRREPS.D_from_angles(*angles, times)
    torch.testing.assert_close(layer.D_from_angles(*angles, times), wanted, rtol=0, atol=1e-13)
    torch.testing.assert_close(layer.D_from_angles(*angles), IRREPS.D_from_angles(*angles), rtol=0, atol=1e-13)
    for kind, given in (("quaternion", quaternions), ("angles", torch.stack(angles, -1))):
        assert torch.equal(
            WignerD(IRREPS, kind)(given)[0],
            getattr(layer, f"D_from_{kind}")(*([given] if kind == "quaternion" else angles))[0],
        )


def test_layouts_of_full_matrices() -> None:
    x, matrix = torch.randn(IRREPS.dim), -o3.rand_matrix()
    wanted = to_ir_mul(WignerD(IRREPS)(matrix) @ x, IRREPS)
    torch.testing.assert_close(WignerD(IRREPS, layout="ir_mul")(matrix) @ to_ir_mul(x, IRREPS), wanted)
    assert WignerD("0x1o + 0e").forward(matrix).tolist() == [[1.0]]


@pytest.mark.parametrize("inverse", [False, True])
@pytest.mark.parametrize(
    ("kind", "method"), [("matrix", "dense"), ("quaternion", "dense"), ("angles", "dense"), ("angles", "sparse")]
)
def test_features_turn_as_e3nns_matrices_say(kind: str, method: str, inverse: bool) -> None:
    x, angles = torch.randn(5, 2, IRREPS.dim), o3.rand_angles(5, 1)
    given = {"matrix": -o3.angles_to_matrix(*angles), "quaternion": o3.angles_to_quaternion(*angles)}
    rotation = given.get(kind, torch.stack(angles, -1))
    matrices = IRREPS.D_from_angles(*angles, torch.tensor(float(kind == "matrix")))
    wanted = torch.einsum("nuji,nuj->nui" if inverse else "nuij,nuj->nui", matrices.expand(5, 2, -1, -1), x)
    found = RotateFeatures(IRREPS, kind, method, inverse=inverse)(x, rotation)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    rotated = RotateFeatures(IRREPS, kind, method, inverse=inverse, layout="ir_mul")(to_ir_mul(x, IRREPS), rotation)
    torch.testing.assert_close(rotated, to_ir_mul(wanted, IRREPS), rtol=0, atol=1e-12)


def test_one_rotation_for_all_rows_and_scalars() -> None:
    x, matrix = torch.randn(6, IRREPS.dim), o3.rand_matrix()
    torch.testing.assert_close(RotateFeatures(IRREPS)(x, matrix), x @ WignerD(IRREPS)(matrix).T)
    scalars, angles = torch.randn(6, 2), torch.randn(3)
    assert torch.equal(RotateFeatures("1x0e + 1x0o", "angles", "sparse")(scalars, angles), scalars)
    assert torch.equal(RotateFeatures("1x0e + 1x0o")(scalars, -matrix), scalars * torch.tensor([1.0, -1.0]))


def test_blocks_of_frames_there_and_back() -> None:
    vectors, x = torch.randn(7, 3), torch.randn(7, IRREPS.dim)
    blocks = EdgeFrame(4)(vectors)  # of a degree more than is read
    there = RotateFeatures(IRREPS, "blocks")(x, blocks)
    back = RotateFeatures(IRREPS, "blocks", inverse=True)(there, blocks)
    assert not torch.allclose(there, x)
    torch.testing.assert_close(back, x, rtol=0, atol=500 * EPS)


def test_half_precision_is_computed_in_float32() -> None:
    quaternion = o3.rand_quaternion(3).bfloat16()
    found = wigner_blocks(quaternion, 3)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wigner_blocks(quaternion.float(), 3).bfloat16())


# -- errors -----------------------------------------------------------------------------------------------------------


def test_errors() -> None:
    with pytest.raises(ConfigError, match="at most 12, got 13"):
        WignerD("13e")
    with pytest.raises(ConfigError, match=r"rotation must .*got 'matrix'"):
        RotateFeatures("1o", method="sparse")
    with pytest.raises(ShapeError, match=r"rotation must be \[\.\.\., 10\], blocks of degrees 0 to 1, got \[4\]"):
        RotateFeatures("1o", "blocks")(torch.zeros(3), torch.zeros(4))
    with pytest.raises(DTypeError, match="rotation must"):
        RotateFeatures("1o")(torch.zeros(3), torch.eye(3, dtype=torch.float32))
    with pytest.raises(ShapeError, match="leading axes of x, rotation must"):
        RotateFeatures("1o")(torch.zeros(2, 3), torch.eye(3).expand(3, 3, 3))
