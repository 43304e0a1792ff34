"""A step of a network has no more torch operators than its row in the benchmark allows."""

import pytest

from eqlayers.bench.operators import STEPS, operators_of


@pytest.mark.kernels
@pytest.mark.parametrize("name", STEPS)
def test_operators_of_a_step(name: str) -> None:
    build, most = STEPS[name]
    operators, kernels = operators_of(build)
    assert kernels > 30, "kernels are counted"
    assert most - 10 <= operators <= most, "fewer: lower the limit"
