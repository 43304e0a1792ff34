"""The repulsion of nuclei: its formula, both ends of its range, derivatives, and messages."""

import math

import mpmath
import pytest
import torch

from eqlayers import Graph
from eqlayers.atoms.elements import COVALENT_RADII, covalent_radius
from eqlayers.errors import ConfigError
from eqlayers.nn import ZBL, EdgeGeometry, EdgeVectors

EPS = torch.finfo(torch.float64).eps
PAIR = Graph(torch.tensor([[0, 1], [1, 0]]), 2)


def edges(*lengths: float, dtype: torch.dtype = torch.float64) -> EdgeVectors:
    at = torch.tensor(lengths, dtype=dtype)
    return EdgeVectors(at.new_zeros(len(at), 3), at, at.new_zeros(len(at), 3), at.new_zeros(len(at), 0))


def of_the_pair(r: float, z1: int, z2: int, p: int = 6) -> float:
    """The energy of two atoms by the formula, in arithmetic of 40 digits."""
    with mpmath.workdps(40):
        scaled = mpmath.mpf(r) * (mpmath.power(z1, 0.3) + mpmath.power(z2, 0.3)) / (mpmath.mpf(0.529) * 0.4543)
        terms = ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4028), (0.02817, 0.2016))
        screened = mpmath.fsum(mpmath.mpf(c) * mpmath.exp(-mpmath.mpf(d) * scaled) for c, d in terms)
        u = mpmath.mpf(r) / (mpmath.mpf(covalent_radius(z1)) + mpmath.mpf(covalent_radius(z2)))
        f = 1 - (p + 1) * (p + 2) * u**p / 2 + p * (p + 2) * u ** (p + 1) - p * (p + 1) * u ** (p + 2) / 2
        return float(mpmath.mpf(14.3996) * z1 * z2 / r * screened * f) if u < 1 else 0.0


@pytest.mark.parametrize("p", [3, 6])
@pytest.mark.parametrize(("z1", "z2"), [(1, 1), (1, 8), (26, 79), (96, 6)])
def test_a_pair_shares_the_energy_of_the_formula(z1: int, z2: int, p: int) -> None:
    for r in (0.05, 0.3, 0.6, 1.4, 2.9):
        found = ZBL(p)(torch.tensor([z1, z2]), edges(r, r), PAIR)
        expected = of_the_pair(r, z1, z2, p)
        assert float(found[0]) == pytest.approx(float(found[1]), rel=8 * EPS)  # products in another order
        # the envelope is a difference of numbers as large as its coefficients
        assert float(found.sum()) == pytest.approx(expected, rel=100 * EPS, abs=100 * EPS * 14.4 * z1 * z2 / r * 48)


def test_the_factor_multiplies() -> None:
    z = torch.tensor([8, 8])
    ratio = ZBL(factor=0.25)(z, edges(0.8, 0.8), PAIR) / ZBL()(z, edges(0.8, 0.8), PAIR)
    assert ratio.tolist() == [0.25, 0.25]


def test_it_ends_smoothly_where_radii_meet() -> None:
    layer, z = ZBL(), torch.tensor([6, 8])
    reach = covalent_radius(6) + covalent_radius(8)

    def derivatives(r: float) -> list[float]:
        at = torch.tensor([r], dtype=torch.float64, requires_grad=True)
        both = edges(r, r)._replace(lengths=at.expand(2))
        found = [layer(z, both, PAIR).sum()]
        for _ in range(2):
            found.append(torch.autograd.grad(found[-1].sum(), at, create_graph=True)[0].sum())
        return [float(value.detach()) for value in found]

    size = abs(derivatives(0.5 * reach)[0])
    for order, value in enumerate(derivatives(reach * (1 - 1e-4))):
        assert abs(value) < 1e3 * size * 1e-4 ** (3 - order)  # (1 - u)^3 and its derivatives
    assert derivatives(reach * (1 + 1e-12)) == [0.0, 0.0, 0.0]
    assert derivatives(0.3 * reach)[1] < 0


def test_gradients_of_both_orders() -> None:
    graph = Graph(torch.tensor([[0, 1, 2, 2], [1, 2, 0, 1]]), 3)
    z, like = torch.tensor([1, 8, 26]), edges(0.4, 0.5, 0.9, 1.1)

    def total(lengths: torch.Tensor) -> torch.Tensor:
        return ZBL()(z, like._replace(lengths=lengths), graph)

    at = like.lengths.clone().requires_grad_()
    assert torch.autograd.gradcheck(total, at)
    assert torch.autograd.grad(total(at).sum(), at, create_graph=True)[0].requires_grad
    assert torch.autograd.gradgradcheck(total, at, fast_mode=True)


def test_constants_stay_in_float64_and_results_do_not() -> None:
    layer, z = ZBL().half().float(), torch.tensor([6, 8])
    assert layer.radii.dtype == torch.float64
    found = layer(z, edges(0.9, 0.9, dtype=torch.float32), PAIR)
    assert found.dtype == torch.float32
    exact = ZBL()(z, edges(0.9, 0.9), PAIR)
    torch.testing.assert_close(found.double(), exact, rtol=1e3 * torch.finfo(torch.float32).eps, atol=0)


def test_no_edges_and_no_atoms() -> None:
    none = Graph(torch.empty(2, 0, dtype=torch.int64), 2)
    assert ZBL()(torch.tensor([1, 1]), edges(), none).tolist() == [0.0, 0.0]
    assert ZBL()(torch.empty(0, dtype=torch.int64), edges(), Graph(torch.empty(2, 0, dtype=torch.int64), 0)).shape == (
        0,
    )


def test_radii_of_known_elements() -> None:
    assert len(COVALENT_RADII) == 96
    assert [covalent_radius(z) for z in (1, 6, 26, 79, 96)] == [0.31, 0.76, 1.32, 1.36, 1.69]
    with pytest.raises(ConfigError, match="z must be an element with a covalent radius, 1 to 96, got 97"):
        covalent_radius(97)


@pytest.mark.parametrize("r", [1e-30, 1e-12, 1e-6])
def test_nuclei_that_meet(r: float) -> None:
    """Three derivatives are those of a Coulomb law: screening and envelope are 1 to the first order of r."""
    at = torch.tensor([r, r], dtype=torch.float64, requires_grad=True)
    found = [ZBL()(torch.tensor([1, 8]), edges(r, r)._replace(lengths=at), PAIR).sum()]
    for _ in range(3):
        found.append(torch.autograd.grad(found[-1].sum(), at, create_graph=True)[0])
    # sum of the coefficients of the screening function, 1.00007; each of two edges has half of the energy
    half = 0.5 * 14.3996 * 8 * 1.00007
    for order, value in enumerate(found[1:], 1):
        wanted = half * (-1) ** order * math.factorial(order) / r ** (order + 1)
        assert value.tolist() == [pytest.approx(wanted, rel=64 * EPS + 40 * r)] * 2


def test_nuclei_at_one_place_have_infinite_energy_and_no_force() -> None:
    """Nor do they change a derivative of any order of the others."""
    z, others = torch.tensor([1, 8, 6]), [0.7, 0.8, 0.9, 1.0]
    index = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
    found = []
    for lengths, graph in (([0.0, 0.0, *others], Graph(index, 3)), (others, Graph(index[:, 2:], 3))):
        at = torch.tensor(lengths, dtype=torch.float64, requires_grad=True)
        energies = ZBL()(z, EdgeVectors(None, at, None, None), graph)
        first = torch.autograd.grad(energies.sum(), at, create_graph=True)[0]
        second = torch.autograd.grad(first.sum(), at, create_graph=True)[0]
        third = torch.autograd.grad(second.sum(), at)[0]
        found.append([energies, first, second, third])
    assert found[0][0].isinf().tolist() == [True, True, False]
    assert torch.equal(found[0][0][2], found[1][0][2])
    for with_pair, without in zip(found[0][1:], found[1][1:], strict=True):
        assert with_pair[:2].tolist() == [0.0, 0.0]
        assert torch.equal(with_pair[2:], without)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_forces_beside_atoms_at_one_place_and_edges_of_padding(dtype: torch.dtype) -> None:
    pos = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.6, 0.0, 0.0]], dtype=dtype, requires_grad=True)
    index = torch.tensor([[0, 1, 0, 2, 2, 2], [1, 0, 2, 0, 2, 2]])
    z, graph = torch.tensor([1, 1, 1]), Graph(index, 3)
    energies = ZBL()(z, EdgeGeometry("0e")(pos, graph.edge_index), graph)
    assert energies.isinf().tolist() == [True, True, False]  # a pair at one place; not the atom with itself
    (found,) = torch.autograd.grad(energies.sum(), pos)
    assert found[1].tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(found[0], -found[2])
    assert float(found[2, 0]) < -0.1
    alone = ZBL()(z, edges(0.6, 0.6, dtype=dtype), Graph(index[:, 2:4], 3))
    assert torch.equal(energies[2], alone[2])
