"""Spherical harmonics, geometry of edges and symmetric contractions that the benchmark has beside ours."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from e3nn import o3

from eqlayers.bench.layers.cases import read_layer_suite
from eqlayers.bench.layers.polynomials import POLYNOMIALS, couplings
from eqlayers.bench.layers.run import build
from tests.each import each

CPU = torch.device("cpu")


def test_operations_of_a_contraction_are_of_atoms_and_of_species(layer_config: Path) -> None:
    """Rows have the polynomials, species the sums of weights; both have channels."""
    (case,) = read_layer_suite(str(layer_config)).only("power/*").cases

    def count(**changes: int) -> int:
        rows = changes.pop("rows", case.rows)
        return build(replace(case, rows=rows, options={**case.options, **changes}), CPU).operations["fwd"]

    assert count(channels=4) == 2 * count()
    assert count(rows=5, elements=4) - count(rows=5) == count(elements=4) - count() > 0
    assert count(rows=5) - count(rows=4) == count(rows=4) - count() > 0


@each("degree", [1, 2, 3])
def test_couplings_turn_as_their_irrep_says(degree: int) -> None:
    irreps = o3.Irreps("0e+1o")
    rotation = -o3.rand_matrix()  # an inversion as well
    matrix = irreps.D_from_matrix(rotation).double().numpy()
    tensors = couplings(str(irreps), degree)
    assert len(tensors) == {1: 2, 2: 6, 3: 20}[degree]  # every irrep in the product of those before with 0e+1o
    assert [ir.l for ir, _ in tensors] == sorted(ir.l for ir, _ in tensors)
    for ir, tensor in tensors:
        turned = tensor
        for axis in range(1, degree + 1):
            turned = np.moveaxis(np.tensordot(turned, matrix, (axis, 0)), -1, axis)
        whole = np.tensordot(ir.D_from_matrix(rotation).double().numpy(), tensor, (1, 0))
        np.testing.assert_allclose(turned, whole, atol=1e-5)
        assert np.square(tensor).sum() == pytest.approx(ir.dim), "normalised"


def test_one_copy_of_a_vector_contracts_to_its_square() -> None:
    """The scalar of degree 2 is the sum of squares over the root of 3, times its weight."""
    options = {"in": "1o", "out": "0e", "channels": 1, "elements": 2, "correlation": 2}
    layer = POLYNOMIALS["SymmetricContraction"].theirs(options).double()
    x, y = torch.tensor([[[1.0, 2.0, 2.0]]]).double(), torch.tensor([[0.0, 1.0]]).double()
    weight = dict(layer.named_parameters())["contractions.0.weights_max"][1, 0, 0].double()
    torch.testing.assert_close(layer(x, y), (9 / 3**0.5 * weight).view(1, 1), rtol=1e-6, atol=1e-6)
