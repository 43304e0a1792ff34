"""Implementations of a case: signs of other coefficients, and columns of weights by them."""

import numpy as np
import pytest
import torch

from eqlayers.bench.cases import Refusal
from eqlayers.bench.products.implementation import path_signs, weight_columns
from eqlayers.bench.products.problems import Problem
from eqlayers.irreps.algebra import wigner_3j

SMALL = Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o")


def test_signs_of_other_coefficients() -> None:
    """One odd path with the other sign; other numbers are refused."""
    signs = path_signs(SMALL, lambda *ls: -3 * wigner_3j(*ls) if ls == (1, 0, 1) else wigner_3j(*ls))
    assert signs == [1.0, 1.0, -1.0, 1.0]
    with pytest.raises(Refusal, match=r"coefficients of \(1, 1, 0\) are not e3nn's"):
        path_signs(SMALL, lambda *ls: np.roll(wigner_3j(*ls), 1, 0) if ls == (1, 1, 0) else wigner_3j(*ls))


def test_weights_of_a_path_have_its_sign() -> None:
    columns = weight_columns(SMALL, [1.0, 1.0, -1.0, 1.0])
    assert columns.into(torch.ones(1, 16)).tolist() == [[1.0] * 8 + [-1.0] * 4 + [1.0] * 4]
    backwards = weight_columns(SMALL, [1.0, 1.0, -1.0, 1.0], torch.arange(15, -1, -1))
    numbers = torch.arange(16.0)[None]
    assert backwards.into(numbers).tolist() == [[15.0, 14, 13, 12, -11, -10, -9, -8, 7, 6, 5, 4, 3, 2, 1, 0]]
    assert torch.equal(backwards.back(backwards.into(numbers)), numbers)
