"""``eqlayers.o3`` has every public name of the installed ``e3nn.o3``, and ours where there is one."""

import pytest
import torch
from e3nn import o3 as theirs

import eqlayers as eq
from eqlayers import o3

OURS = {
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Linear",
    "Norm",
    "SphericalHarmonics",
    "spherical_harmonics",
    "TensorProduct",
    "TensorSquare",
}
#: e3nn 0.4.4, the oldest that is supported
OLDEST = """rand_matrix identity_angles rand_angles compose_angles inverse_angles identity_quaternion rand_quaternion
compose_quaternion inverse_quaternion rand_axis_angle compose_axis_angle matrix_x matrix_y matrix_z angles_to_matrix
matrix_to_angles angles_to_quaternion matrix_to_quaternion axis_angle_to_quaternion quaternion_to_axis_angle
matrix_to_axis_angle angles_to_axis_angle axis_angle_to_matrix quaternion_to_matrix quaternion_to_angles
axis_angle_to_angles angles_to_xyz xyz_to_angles wigner_D wigner_3j Irrep Irreps irrep Instruction TensorProduct
FullyConnectedTensorProduct ElementwiseTensorProduct FullTensorProduct TensorSquare SphericalHarmonics
spherical_harmonics SphericalHarmonicsAlphaBeta spherical_harmonics_alpha_beta spherical_harmonics_alpha Legendre
ReducedTensorProducts s2_grid spherical_harmonics_s2_grid rfft irfft ToS2Grid FromS2Grid SO3Grid Linear Norm"""


def test_no_public_name_is_missing() -> None:
    public = {name for name in [*dir(theirs), *theirs.__all__, *OLDEST.split()] if not name.startswith("_")}
    assert [name for name in sorted(public) if not hasattr(o3, name)] == []
    assert set(o3.__all__) == set(theirs.__all__)


def test_ours_are_ours_and_the_rest_is_e3nns() -> None:
    for name in theirs.__all__:
        mine = getattr(o3, name)
        if name in OURS:
            assert mine is getattr(eq.nn if isinstance(mine, type) else eq.functional, name), name
        else:
            assert mine is getattr(theirs, name), name
    assert theirs.TensorProduct is not o3.TensorProduct  # nothing was put into e3nn


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"got 'Tensorproduct'\. Use eqlayers\.TensorProduct"):
        _ = o3.Tensorproduct
    with pytest.raises(AttributeError, match=r"module 'eqlayers\.o3' has no attribute '_linear'"):
        _ = o3._linear


def test_a_script_written_for_e3nn_runs() -> None:
    irreps = o3.Irreps("4x0e + 2x1o")
    edge = o3.spherical_harmonics("0e + 1o", torch.randn(5, 3), normalize=True)
    product = o3.FullyConnectedTensorProduct(irreps, edge_irreps := o3.Irreps("0e + 1o"), irreps)
    linear = o3.Linear(irreps, irreps)
    assert o3.Norm(irreps)(linear(product(irreps.randn(5, -1), edge))).shape == (5, 6)
    assert edge_irreps.dim == 4
