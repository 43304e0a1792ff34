"""Spherical harmonics as formulas: against Legendre functions, by quadrature, and with all their derivatives."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from e3nn.o3 import Irreps
from numpy.typing import NDArray
from scipy.special import lpmv

from eqlayers.errors import ConfigError, IrrepsError
from eqlayers.layers.harmonics.lower import LARGEST_DEGREE, SHIFTS, edge_formula, harmonics_formula, read_degrees
from eqlayers_kernels.forms.formula import Formula, evaluate
from tests.each import each, refused

Array = NDArray[np.float64]
EPS = np.finfo(np.float64).eps


class Primitives:
    @staticmethod
    def inverse_length(*vector: Array) -> Array:
        square = sum(part * part for part in vector)
        return np.where(square > 0, 1 / np.sqrt(np.where(square > 0, square, 1.0)), 0.0)

    @staticmethod
    def is_positive(value: Array) -> Array:
        return (value > 0).astype(np.float64)


def run(base: Formula, *operands: Array) -> list[Array]:
    """``[rows, components]`` of every result."""
    found = evaluate(base, lambda operand, i: operands[operand][:, i], Primitives)
    zero = np.zeros(len(operands[0]))
    return [np.stack([zero if p is None else zero + p for p in part], -1) for part in found]


def vectors(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 3))


def bound(l: int) -> float:
    r"""Bound of the error of a component :math:`\le \sqrt{2 l + 1}`, in numbers with the roundoff of float64.

    The unit vector has 4 roundings, and a polynomial of its polar part the slope l (l + 1) / 2 at the poles; each of
    the l steps of the recursions adds 3 roundings to each of two factors, the prefactor and the product 4.
    """
    return EPS * math.sqrt(2 * l + 1) * (2 * l * (l + 1) + 6 * l + 4)


def standard(l: int, points: Array) -> Array:
    """Real harmonics with z as polar axis from associated Legendre functions, without the phase; 'component'."""
    x, y, z = (points / np.linalg.norm(points, axis=-1, keepdims=True)).T
    phi, columns = np.arctan2(y, x), []
    for m in range(-l, l + 1):
        n = abs(m)
        size = math.sqrt((2 * l + 1) * (2 if m else 1) * math.factorial(l - n) / math.factorial(l + n))
        angle = np.sin(n * phi) if m < 0 else np.cos(n * phi)
        columns.append(size * (-1) ** n * lpmv(n, l, z) * angle)
    return np.stack(columns, -1)


@each("l", range(LARGEST_DEGREE + 1))
def test_values_are_the_standard_ones_at_z_x_y(l: int) -> None:
    v = vectors(300)
    v = v[np.hypot(v[:, 0], v[:, 2]) > 0.2 * np.linalg.norm(v, axis=-1)]
    v[:3] = [[0, 1, 0], [0, -2, 0], [1, 1e-9, 0]]  # poles, the equator
    (got,) = run(harmonics_formula((l,), True, "component"), v)
    reference = standard(l, v[:, [2, 0, 1]])
    # the reference has 4 roundings of the polar part and the angle, where the slope is l (l + 1) / 2 over the sine, 0.2
    assert np.abs(got - reference).max() <= bound(l) + 20 * l * (l + 1) * EPS * math.sqrt(2 * l + 1)


def test_components_are_orthonormal() -> None:
    """By a quadrature that is exact for products of two polynomials of the largest degree."""
    nodes, weights = np.polynomial.legendre.leggauss(LARGEST_DEGREE + 1)
    phi = np.arange(2 * LARGEST_DEGREE + 1) * 2 * math.pi / (2 * LARGEST_DEGREE + 1)
    y, angle = (part.ravel() for part in np.meshgrid(nodes, phi, indexing="ij"))
    ring = np.sqrt(1 - y * y)
    points = np.stack([ring * np.sin(angle), y, ring * np.cos(angle)], -1)
    weight = np.repeat(weights, len(phi)) * 2 * math.pi / len(phi)
    degrees = tuple(range(LARGEST_DEGREE + 1))
    for normalize in (True, False):
        (values,) = run(harmonics_formula(degrees, normalize, "integral"), points)
        overlap = (values * weight[:, None]).T @ values
        assert np.abs(overlap - np.eye(len(overlap))).max() <= 2 * bound(LARGEST_DEGREE)


def test_normalizations() -> None:
    v = vectors(50)
    for l in (0, 1, 4):
        of = {kind: run(harmonics_formula((l,), True, kind), v)[0] for kind in ("component", "norm", "integral")}
        sizes = {"component": 2 * l + 1, "norm": 1.0, "integral": (2 * l + 1) / (4 * math.pi)}
        for kind, size in sizes.items():
            np.testing.assert_allclose((of[kind] ** 2).sum(-1), size, rtol=4 * bound(l))


@pytest.mark.parametrize("l", range(0, 13, 3))
def test_polynomials_are_homogeneous_and_equal_on_the_sphere(l: int) -> None:
    v = vectors(50)
    length = np.linalg.norm(v, axis=-1, keepdims=True)
    on, off = (run(harmonics_formula((l,), normalize, "component"), v)[0] for normalize in (True, False))
    assert np.abs(off / length**l - on).max() <= 2 * bound(l)


def test_degrees_come_in_the_order_given_and_again() -> None:
    v = vectors(20)
    (whole,) = run(harmonics_formula((0, 1, 2, 3), True, "norm"), v)
    (picked,) = run(harmonics_formula((3, 1, 1, 0, 3), True, "norm"), v)
    blocks = {l: whole[:, l * l : (l + 1) ** 2] for l in range(4)}
    np.testing.assert_array_equal(picked, np.concatenate([blocks[l] for l in (3, 1, 1, 0, 3)], -1))


@pytest.mark.parametrize("normalize", [True, False])
def test_the_zero_vector(normalize: bool) -> None:
    """Keeps l = 0; with ``normalize`` it has no other value and no derivative of any order."""
    base, zero = harmonics_formula((0, 1, 2, 3, 4), normalize, "component"), np.zeros((1, 3))
    (value,) = run(base, zero)
    np.testing.assert_array_equal(value, [[1.0] + [0.0] * 24])
    given, made, derivatives = [True], [zero, np.ones((1, 25))], []
    for _ in range(3):
        base = base.vjp(given, [True] + [False] * (len(base.operands) - 1))
        (derivative,) = run(base, *made)
        derivatives.append(derivative)
        given, made = [True], [*made, np.ones((1, 3))]
    assert all(np.isfinite(d).all() for d in derivatives)
    if normalize:
        assert all((d == 0).all() for d in derivatives)
    else:
        np.testing.assert_allclose(derivatives[0], math.sqrt(3) * np.ones((1, 3)), rtol=2 * EPS)


@pytest.mark.parametrize(("lmax", "forward", "gradient"), [(1, 7, 24), (2, 25, 60), (3, 45, 120), (6, 145, 421)])
def test_no_more_operations_than_counted(lmax: int, forward: int, gradient: int) -> None:
    base = harmonics_formula(tuple(range(lmax + 1)), True, "component")
    assert base.operations <= forward
    assert base.vjp([True], [True]).operations <= gradient


def test_one_degree_pays_for_no_other() -> None:
    counts = [harmonics_formula((l,), True, "norm").operations for l in range(1, 7)]
    assert all(a < b for a, b in pairwise(counts))
    assert counts[-1] < harmonics_formula(tuple(range(7)), True, "norm").operations


@pytest.mark.parametrize("shift", SHIFTS)
@pytest.mark.parametrize("sign", [1, -1])
def test_edges(shift: str, sign: int) -> None:
    base = edge_formula((0, 1, 2), "component", shift, sign)
    src, dst, steps, cell = vectors(9, 1), vectors(9, 2), vectors(9, 3), np.random.default_rng(4).normal(size=(9, 9))
    number = {"none": 2, "vector": 3}.get(shift, 4)
    assert [one.rows for one in base.operands] == ["src", "dst", "each", "src" if shift == "cells" else "one"][:number]
    got, length, direction, harmonics = run(base, *(src, dst, steps, cell)[:number])
    moved = {"none": np.zeros((9, 3)), "vector": steps}
    vector = sign * (dst - src + moved.get(shift, np.einsum("ei,eij->ej", steps, cell.reshape(9, 3, 3))))
    np.testing.assert_allclose(got, vector, rtol=0, atol=8 * EPS * np.abs(vector).max())
    np.testing.assert_allclose(length[:, 0], np.linalg.norm(got, axis=-1), rtol=8 * EPS)
    np.testing.assert_allclose(direction * length, got, rtol=8 * EPS)
    np.testing.assert_array_equal(harmonics, run(harmonics_formula((0, 1, 2), True, "component"), got)[0])


@pytest.mark.parametrize(
    ("given", "inside", "degrees", "vector", "out"),
    [
        (2, None, (2,), "1o", "2e"),
        ([1, 0, 1], None, (1, 0, 1), "1o", "1o+0e+1o"),
        ("2x1e + 0e", None, (1, 1, 0), "1e", "2x1e+0e"),
        (Irreps("1o + 1o"), None, (1, 1), "1o", "2x1o"),
        ("0x3o + 0e", None, (0,), "1o", "0e"),
        ([(1, "1o"), (2, (2, 1))], None, (1, 2, 2), "1o", "1o+2x2e"),
        ([1, 2], "1e", (1, 2), "1e", "1e+2e"),
        ("2e", "1e", (2,), "1e", "2e"),
        (np.int64(1), None, (1,), "1o", "1o"),
    ],
)
def test_degrees_are_read_as_by_e3nn(given: Any, inside: Any, degrees: Any, vector: str, out: str) -> None:
    assert read_degrees(given, inside) == (degrees, Irreps(vector), Irreps(out))


test_degrees_that_there_are_not = refused(
    "given, inside, error, message",
    [
        ("1o + 1e", None, IrrepsError, "parities of the powers of irreps_in, 1x1e, got 1o"),
        ("2o", None, IrrepsError, "got 2o in 1x2o. Write 2e"),
        ("1o", "1e", IrrepsError, "got 1o"),
        ("1o", "2e", IrrepsError, "irreps_in must be 1o or 1e"),
        ("1o", "2x1o", IrrepsError, "irreps_in must be 1o or 1e"),
        ([], None, IrrepsError, "at least one degree"),
        ("", None, IrrepsError, "at least one degree"),
        (-1, None, ConfigError, "at least 0, got -1"),
        ([0, -1], None, ConfigError, "at least 0, got -1"),
        ([1.0], None, ConfigError, r"got 1\.0"),
        ([True], None, ConfigError, "got True"),
        (LARGEST_DEGREE + 1, None, ConfigError, f"at most {LARGEST_DEGREE}, got {LARGEST_DEGREE + 1}"),
        ("8q", None, IrrepsError, "irreps_out must be irreps"),
        (None, None, IrrepsError, "irreps_out must be"),
    ],
    lambda given, inside: read_degrees(given, inside),
)
