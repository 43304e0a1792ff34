"""Formulas on printed Triton kernels through the operator, in the interpreter or on a GPU, against the definition."""

import pytest
import torch
from torch import Tensor

import eqlayers as eq
from eqlayers import Graph
from eqlayers.core.forms.description import register_formula
from eqlayers.errors import IndexRangeError
from eqlayers.layers.base.module import run_formula
from eqlayers_kernels.forms.formula import Formula
from eqlayers_kernels.triton import availability
from tests.formulas import cubic, edges_of_points, functions

pytestmark = pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
DEVICE = "cpu" if availability.interpreted() else "cuda"
EDGES = torch.tensor([[2, 0, 2, 1, 0, 0, 1], [0, 3, 3, 0, 1, 1, 2]])
COUNT = {"each": 7, "src": 4, "dst": 5}
FORMS = {"cubic": cubic(3), "mul_ir": cubic(5, "mul_ir", components=(1, 2)), "one": cubic(2, rows="one")}
FORMS |= {"edges": edges_of_points(), "functions": functions(3), "functions of rows": functions(0)}
FORMS = {name: register_formula(base) for name, base in FORMS.items()}


def results(base: Formula, backend: str, dtype: torch.dtype) -> list[Tensor]:
    """Values, gradients, and second derivatives."""
    graph = Graph(EDGES.to(DEVICE), 4, 5) if base.of_nodes else None
    made = torch.Generator().manual_seed(0)
    shapes = [(one.width,) if one.rows == "one" else (COUNT[one.rows], one.width) for one in base.operands]
    operands = [torch.randn(shape, dtype=torch.float64, generator=made) for shape in shapes]
    operands = [t.to(DEVICE, dtype).requires_grad_() for t in operands]
    out = [list(run_formula(base, operands, graph, backend))]
    for _ in range(2):
        total = [t for t in out[-1] if t.requires_grad]
        ways = [torch.linspace(-1, 1, t.numel(), dtype=t.dtype, device=DEVICE).view_as(t) for t in total]
        out.append(list(torch.autograd.grad(total, operands, ways, create_graph=True)))
    return [t.detach().double() for part in out for t in part]


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("dtype", "eps"), [(torch.float64, 2.0**-53), (torch.float32, 2.0**-24)], ids=str)
@pytest.mark.parametrize("name", FORMS)
def test_values_and_derivatives_are_those_of_the_definition(name: str, dtype: torch.dtype, eps: float) -> None:
    for got, want in zip(results(FORMS[name], "triton", dtype), results(FORMS[name], "reference", dtype), strict=True):
        # each order rounds what the next one reads; lengths below 1 make derivatives grow
        assert float((got - want).abs().max()) <= 400 * eps * max(1.0, float(want.abs().max()))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("dtype", "eps"), [(torch.float64, 2.0**-53), (torch.float32, 2.0**-24)], ids=str)
def test_functions_keep_their_digits_near_zero_and_far_from_it(dtype: torch.dtype, eps: float) -> None:
    """Relative to the value: one minus something near one has lost its digits."""
    sizes = torch.cat([torch.logspace(-12, 1.3, 60, dtype=torch.float64), torch.linspace(0.2, 0.4, 40).double()])
    numbers = torch.cat([-sizes, sizes]).to(DEVICE, dtype)
    x = torch.stack([numbers] * 3, 1).repeat_interleave(3, 1)
    (found,) = run_formula(FORMS["functions"], [x], None, "triton")
    want = torch.stack([torch.nn.functional.silu(x[:, 0].double()), torch.tanh(x[:, 0].double())], 1)
    error = (found[:, [0, 3]].double() / want - 1).abs()
    assert float(error.max()) <= 16 * eps


def test_tables_of_another_graph_are_refused() -> None:
    if DEVICE != "cpu":
        pytest.skip("indices are not looked at on a GPU")
    base = FORMS["cubic"]
    operands = [torch.ones(7, 12), torch.ones(4, base.operands[1].width)]
    tables = torch.zeros_like(torch.ops.eqlayers.edge_tables(EDGES, 4, 5))
    with pytest.raises(IndexRangeError, match="graph must"):
        torch.ops.eqlayers.form(operands, tables, 7, 4, 5, base.key, "triton")


def test_layers() -> None:
    harmonics = eq.nn.SphericalHarmonics([0, 1, 2], True, backend="triton").to(DEVICE)
    x = torch.randn(9, 3, device=DEVICE)
    want = eq.nn.SphericalHarmonics([0, 1, 2], True, backend="reference")(x)
    torch.testing.assert_close(harmonics(x), want, atol=1e-6, rtol=0)
    contraction = eq.nn.SymmetricContraction("3x0e + 3x1o", "3x0e + 3x1o", 2, 4, backend="triton").to(DEVICE)
    features, species = torch.randn(5, 12, device=DEVICE), torch.tensor([0, 3, 3, 1, 0], device=DEVICE)
    got = contraction(features, species)
    contraction.backend = "reference"
    torch.testing.assert_close(got, contraction(features, species), atol=1e-5, rtol=0)


def test_no_rows() -> None:
    base = FORMS["edges"]
    graph = Graph(EDGES[:, :0].to(DEVICE), 4, 5)
    operands = [torch.ones(rows, one.width, device=DEVICE, requires_grad=True) for rows, one in zip(
        (4, 5, 0), base.operands, strict=True)]  # fmt: skip
    found = run_formula(base, operands, graph, "triton")
    gradients = torch.autograd.grad([t.sum() for t in found], operands)
    assert [tuple(t.shape) for t in gradients] == [(4, 3), (5, 3), (0, 4)]
    assert not any(t.any() for t in gradients)
