"""The rows of the table of connection modes: weight shapes as in e3nn, fan-ins, and multiplicities that are refused."""

from __future__ import annotations

import pytest
from e3nn import o3

from eqlayers.errors import IrrepsError
from eqlayers.irreps.instructions import MODES

#: Mode -> multiplicities of in1, in2 and out, and the number of products in one channel of the output.
CASES = {
    "uvw": ((4, 3, 5), 12),
    "uvu": ((4, 3, 4), 3),
    "uvv": ((4, 3, 3), 4),
    "uuw": ((4, 4, 5), 4),
    "uuu": ((4, 4, 4), 1),
    "uvuv": ((4, 3, 12), 1),
    "uvu<v": ((4, 4, 6), 1),
    "u<vw": ((4, 4, 5), 6),
}


@pytest.mark.parametrize("name", MODES)
def test_weights_and_fan_in(name: str) -> None:
    muls, fan_in = CASES[name]
    mode = MODES[name]
    product = o3.TensorProduct(*([(mul, "0e")] for mul in muls), [(0, 0, 0, name, True)])
    assert mode.weight_shape(*muls) == product.instructions[0].path_shape
    assert mode.fan_in(*muls) == fan_in
    mode.check("path", *muls, True)
    for place in range(3):
        wrong = [mul + (place == number) for number, mul in enumerate(muls)]
        if mode.out != "w" or (place < 2 and mode.first == mode.second):
            if (name == "uvu" and place == 1) or (name == "uvv" and place == 0):
                continue  # channels that are summed have any number
            with pytest.raises(IrrepsError, match=f"path: mode '{name}' needs"):
                mode.check("path", *wrong, True)


def test_modes_whose_outputs_only_weights_make() -> None:
    for name in ("uvw", "u<vw"):
        with pytest.raises(IrrepsError, match="needs has_weight=True"):
            MODES[name].check("path", *CASES[name][0], False)
