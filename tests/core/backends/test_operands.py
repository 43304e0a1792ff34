"""Operands that do not fit a form are refused, with the fix, before a kernel reads them."""

import pytest
import torch

from eqlayers import Graph
from eqlayers.core.backends.operands import check_operands, shape_of, with_table
from eqlayers.core.forms.request import Sizes
from eqlayers.errors import ConfigError, DTypeError, IndexRangeError, ShapeError
from eqlayers.layers.base.module import run_formula
from eqlayers_kernels.forms.formula import Operand
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import Axis, Path, Program, Slot
from tests.core.test_formula import BASES, EDGES, graph_of, operands_of

pytestmark = pytest.mark.usefixtures("needs_a_compiler")
#: Two channels, a weight for each.
PATH = Path(Slot(0, 2, 1), Slot(0, 1, 1), Slot(0, 2, 1), 0, (Axis(2, 1, 0, 1, 1),), ((0, 0, 0, 1.0),))
PRODUCT = ProductForm(Program((PATH,), (2, 1, 2, 2), "ir_mul"))


def calls():
    base, good = BASES["cubic"], [t.detach() for t in operands_of(BASES["cubic"])]
    graph = graph_of(base)
    yield "columns", (base, [good[0][:, 1:], good[1]], graph), ShapeError, r"x must be \[7, 12\] .* got \[7, 11\]"
    yield "no graph", (base, good, None), ShapeError, "must be given a graph"
    yield "no such node", (base, good, Graph(EDGES + 2, 4, 5)), IndexRangeError, "must lie in"
    yield "backend", (base, good, graph, "cuda"), ConfigError, "backend must be one of"


@pytest.mark.parametrize(("args", "error", "message"), [pytest.param(*rest, id=name) for name, *rest in calls()])
def test_bad_calls(args, error, message):
    with pytest.raises(error, match=message):
        run_formula(*args)


def test_operands_may_have_the_dtype_of_the_sums() -> None:
    """Constants come in it: float32 beside half precision. Other dtypes than the two are refused."""
    sizes, half = Sizes(3), torch.ones(3, 2).half()
    check_operands(PRODUCT, [half, half[:, :1].float(), half], None, sizes)
    with pytest.raises(DTypeError, match=r"y must have the dtype of x, torch\.float16, got torch\.float64"):
        check_operands(PRODUCT, [half, half[:, :1].double(), half], None, sizes)


def test_weights_that_a_form_does_not_have_are_not_looked_at() -> None:
    bare = PATH._replace(weight=None, axes=(Axis(2, 1, 0, 0, 1),))
    form = ProductForm(Program((bare,), (2, 1, 0, 2), "ir_mul"))
    x, y = torch.ones(3, 2), torch.ones(3, 1)
    check_operands(form, [x, y, torch.ones(3, 0, dtype=torch.int64)], None, Sizes(3))
    with pytest.raises(ShapeError, match=r"w must be \[3, 0\] for this form, got \[3, 1\]"):
        check_operands(form, [x, y, y], None, Sizes(3))


def test_shapes_follow_from_sizes() -> None:
    """The rows of a table are counted where a form reads one, and only there."""
    sizes = Sizes(5, 3, 4)
    shapes = {rows: shape_of(Operand("x", 7, (), rows), sizes) for rows in ("each", "one", "src", "dst")}
    assert shapes == {"each": (5, 7), "one": (7,), "src": (3, 7), "dst": (4, 7)}
    tabled = PRODUCT.tabled(4, 1)
    operands = [torch.ones(3, 2), torch.ones(5, 1), torch.ones(9, 2), torch.ones(5, 4)]
    assert with_table(tabled, operands, sizes).table == 9
    assert with_table(tabled, operands[:2], sizes).table == 0
    assert with_table(PRODUCT, operands[:3], sizes) == sizes
    check_operands(tabled, operands, True, with_table(tabled, operands, sizes))
    with pytest.raises(ShapeError, match=r"must be 0 or more, got -1, 0 and 0\. Count the rows"):
        check_operands(PRODUCT, [torch.ones(0, n) for n in (2, 1, 2)], None, Sizes(-1))
