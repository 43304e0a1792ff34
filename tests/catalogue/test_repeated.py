"""Every layer with two layouts has a row of repeated irreps, or refuses them in 'ir_mul'."""

import pytest

import eqlayers.nn as nn
from eqlayers.errors import IrrepsError
from eqlayers.irreps.algebra import as_irreps
from eqlayers.layers.base.columns import same_order
from tests.each import each

from .cases import Case
from .repeated import REFUSE
from .test_layers import CASES


def repeated(case: Case) -> bool:
    """Whether an operand has groups side by side that 'ir_mul' does not join."""
    read = [as_irreps(turn) for turn in (*case.acts.values(), *case.out) if isinstance(turn, str)]
    return any(not same_order(irreps, irreps.simplify(), "ir_mul") for irreps in read)


def test_every_layer_has_one() -> None:
    classes = {case.name.partition(",")[0] for case in CASES if len(case.layouts) > 1}
    without = classes - {case.name.partition(",")[0] for case in CASES if repeated(case) and len(case.layouts) > 1}
    assert without == REFUSE.keys() - {"ElementwiseTensorProduct"}, "add a row to tests/catalogue/repeated.py"


@each("name", REFUSE)
def test_repeated_irreps_that_would_be_misread_are_refused(name: str) -> None:
    with pytest.raises(IrrepsError, match=r"irreps_(in|in1|in2|gated) must have the groups .* with layout='ir_mul'"):
        getattr(nn, name)(*REFUSE[name], layout="ir_mul")
    getattr(nn, name)(*REFUSE[name])  # in 'mul_ir' they are joined


def test_a_square_with_weights_refuses_them_in_its_output() -> None:
    with pytest.raises(IrrepsError, match="irreps_out must have the groups 3x1e"):
        nn.TensorSquare("3x1o", "2x1e + 1x1e", layout="ir_mul")
