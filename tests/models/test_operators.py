"""A step of a network has no more torch operators than its row in the benchmark allows."""

import pytest
import torch

from eqlayers.bench.operators import STEPS, operators_of


@pytest.mark.kernels
@pytest.mark.skipif(torch.__version__ < "2.7", reason="torch 2.6 detaches the gradient of every weight once more")
@pytest.mark.parametrize("name", STEPS)
def test_operators_of_a_step(name: str) -> None:
    build, most = STEPS[name]
    operators, kernels = operators_of(build)
    assert kernels > 30, "kernels are counted"
    assert most - 10 <= operators <= most, "fewer: lower the limit"
