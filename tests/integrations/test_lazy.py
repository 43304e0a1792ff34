"""Gather, product and sum that become one call in forwards that do not ask for it: forms of other packages."""

import copy
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from eqlayers.errors import ConfigError, EqlayersError
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds import convolution
from eqlayers.integrations.kinds.convolution import AcceleratedMessages
from eqlayers.integrations.lazy import is_lazy
from tests.integrations.conftest import Network, copies
from tests.integrations.forms import EDGES, FUSED, USES, DiffDockForm, E3nnForm, EquiformerForm, Layer, RowsAside, Used

ATOMS = 7


def random_operands(dtype: torch.dtype = torch.float64) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    edges = torch.randint(0, ATOMS - 1, (2, EDGES), generator=generator)
    rows = [
        torch.randn(n, w, generator=generator, dtype=torch.float64) for n, w in ((ATOMS, 16), (EDGES, 4), (EDGES, 3))
    ]
    x, attr, edge = (row.to(dtype).requires_grad_() for row in rows)
    return [x, edges, attr, edge]


def results(model: nn.Module, operands: list[Tensor]) -> list[Tensor]:
    """Value, gradients by inputs and parameters, and gradients of those."""
    wanted = [t for t in operands if t.is_floating_point()] + list(model.parameters())
    value = model(*operands)
    first = torch.autograd.grad(value.square().sum(), wanted, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), wanted)
    return [value, *first, *second]


def same(tensors: list[Tensor], expected: list[Tensor]) -> None:
    for mine, theirs in zip(tensors, expected, strict=True):
        bound = 1e3 * torch.finfo(theirs.dtype).eps * float(theirs.detach().abs().max())
        assert float((mine - theirs).detach().abs().max()) <= bound


@pytest.fixture
def convolutions(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """One entry for every product that ran as a convolution."""
    seen: list[Any] = []
    run = convolution.run_convolution
    monkeypatch.setattr(convolution, "run_convolution", lambda *args: (seen.append(1), run(*args))[1])
    return seen


@pytest.mark.parametrize("kind", FUSED)
def test_forms_become_one_call(float64: None, convolutions: list[Any], kind: str) -> None:
    model, operands = FUSED[kind](), random_operands()
    expected = results(model, operands)
    report = accelerate(model, check=False)
    (row,) = (row for row in report.replaced if row.target == "convolution")
    assert row.replacement == "AcceleratedMessages"
    tensors = results(model, operands)
    assert len(convolutions) == 1
    same(tensors, expected)


def test_the_check_compares_the_convolution(float64: None, convolutions: list[Any]) -> None:
    row = next(row for row in accelerate(E3nnForm()).replaced if row.target == "convolution")
    assert convolutions
    assert row.error is not None
    assert 0 < row.error < 1
    assert row.saved_bytes


@pytest.mark.parametrize("use", USES)
def test_other_uses_get_the_numbers(float64: None, convolutions: list[Any], use: str) -> None:
    model, operands = Used(), random_operands()
    model.use = use
    expected = results(model, operands)
    accelerate(model, check=False)
    same(results(model, operands), expected)
    assert not convolutions


def test_a_form_with_a_linear_map_in_between(float64: None, convolutions: list[Any]) -> None:
    """Equiformer's: nothing is fused, and nothing changes."""
    model, operands = EquiformerForm(), random_operands()
    expected = results(model, operands)
    accelerate(model, check=False)
    same(results(model, operands), expected)
    assert not convolutions


def test_what_is_returned_is_numbers(float64: None) -> None:
    model, operands = RowsAside(), random_operands()
    expected = model(*operands)
    accelerate(model, check=False)
    result = model(*operands)
    assert type(result[0]) is Tensor
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("atoms", [0, 3])
def test_no_edges(float64: None, atoms: int) -> None:
    model = E3nnForm()
    accelerate(model, check=False)
    empty = [torch.zeros(atoms, 16), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0, 4), torch.zeros(0, 3)]
    assert model(*empty).shape == (atoms, 32)
    assert not model(*empty).any()


def test_attributes_that_edges_share(float64: None, convolutions: list[Any]) -> None:
    """e3nn repeats one row for all edges; a convolution would not."""
    model, operands = E3nnForm(), random_operands()
    operands[2] = operands[2][:1].detach()
    expected = model(*operands)
    accelerate(model, check=False)
    torch.testing.assert_close(model(*operands), expected)
    assert not convolutions


def test_weights_of_the_product_itself(float64: None, convolutions: list[Any]) -> None:
    class Shared(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.tp = o3.FullyConnectedTensorProduct("4x0e + 4x1o", "0e + 1o", "4x0e + 4x1o")

        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            return torch.zeros_like(x).index_add(0, edges[1], self.tp(x[edges[0]], attr)) + self.fc(edge).sum()

    model, operands = Shared(), random_operands()
    expected = results(model, operands)
    accelerate(model, check=False)
    same(results(model, operands), expected)
    assert convolutions


@pytest.mark.parametrize("changed", ["x", "edges", "attr", "weight"])
def test_a_change_in_place_is_an_error_and_no_wrong_number(float64: None, changed: str) -> None:
    class Changing(E3nnForm):
        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            weight, dst = self.fc(edge).detach(), edges[1].clone()
            message = self.tp(x[edges[0]], attr, weight)
            {"x": x, "edges": edges, "attr": attr, "weight": weight}[changed].mul_(0)
            return x.new_zeros(len(x), message.shape[1]).index_add(0, dst, message)

    model, operands = Changing(), [t.detach() for t in random_operands()]
    model(*(t.clone() for t in operands))
    accelerate(model, check=False)
    with pytest.raises(ConfigError, match="must not change features or edges in place"):
        model(*operands)


@pytest.mark.parametrize("where", ["the gather", "the product", "the sum"])
def test_gradients_stop_where_the_forward_stops_them(float64: None, where: str) -> None:
    class Stopping(E3nnForm):
        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            weight = self.fc(edge)
            with torch.set_grad_enabled(where != "the gather"):
                rows, logged = x[edges[0]], x[edges[0]]
            with torch.inference_mode():
                assert logged.sum().isfinite()
            with torch.set_grad_enabled(where != "the product"):
                message = self.tp(rows, attr, weight)
            with torch.set_grad_enabled(where != "the sum"):
                out = x.new_zeros(len(x), 32).index_add(0, edges[1], message)
            return out + message.sum() + rows.sum()

    model, operands = Stopping(), random_operands()
    wanted = [operands[0], operands[2], model.fc.weight]

    def gradients() -> list[Tensor]:
        value = model(*operands)
        gradients = torch.autograd.grad(value.square().sum(), wanted, allow_unused=True, materialize_grads=True)
        return [value, *gradients]

    expected = gradients()
    accelerate(model, check=False)
    same(gradients(), expected)


@pytest.mark.parametrize(("without", "calls"), [(torch.no_grad, 2), (torch.inference_mode, 0)])
def test_without_gradients(float64: None, convolutions: list[Any], without: Any, calls: int) -> None:
    """Inference mode counts no changes in place, so that nothing is put off there."""
    model, operands = DiffDockForm(), random_operands()
    expected = model(*operands).detach()
    accelerate(model, check=False)
    with without():
        inside = [t.clone() for t in operands]
        torch.testing.assert_close(model(*inside), expected)
        torch.testing.assert_close(model(*operands), expected)
    assert len(convolutions) == calls


def test_an_edge_that_leads_nowhere_is_refused(float64: None) -> None:
    model, operands = E3nnForm(), random_operands()
    accelerate(model, check=False)
    operands[1] = operands[1].clone()
    operands[1][0, 3] = ATOMS
    with pytest.raises((EqlayersError, IndexError)):
        model(*operands)


def test_mixed_precision_and_float32(convolutions: list[Any]) -> None:
    """In mixed precision rows are copied: torch decides about dtypes then."""
    model, operands = E3nnForm(), random_operands(torch.float32)
    plain = copy.deepcopy(model)
    accelerate(model, check=False)
    same([model(*operands)], [plain(*operands)])
    assert len(convolutions) == 1
    with torch.autocast("cpu", torch.bfloat16):
        assert model(*operands).dtype == plain(*operands).dtype
    assert len(convolutions) == 1


def test_compiled(convolutions: list[Any]) -> None:
    model, operands = E3nnForm(), random_operands(torch.float32)
    expected = model(*operands)
    accelerate(model, check=False)
    result = torch.compile(model, backend="eager", fullgraph=True)(*operands)
    same([result], [expected])
    assert not convolutions, "compilers see gather, product and sum"


def test_copies_files_and_the_way_back(float64: None, convolutions: list[Any]) -> None:
    model, operands = DiffDockForm(), random_operands()
    expected, product = results(model, operands), model.tp
    keys = list(model.state_dict())
    accelerate(model)
    assert list(model.state_dict()) == keys
    for other in copies(model):
        convolutions.clear()
        same(results(other, operands), expected)
        assert len(convolutions) == 1
        deaccelerate(other)
        assert type(other) is DiffDockForm
        same(results(other, operands), expected)
        assert len(convolutions) == 1
    assert deaccelerate(model).tp is product
    assert type(model) is DiffDockForm


def test_a_forward_that_was_replaced_or_is_compiled_by_itself_stays(float64: None) -> None:
    model = E3nnForm()
    model.forward = model.forward  # type: ignore[method-assign]
    assert {row.target for row in accelerate(model, check=False).replaced} == {"product"}
    hooked = E3nnForm()
    hooked.tp.register_forward_hook(lambda module, args, result: None)
    assert {row.target for row in accelerate(hooked, check=False).replaced} == {"product"}


def test_a_product_in_two_places(float64: None, convolutions: list[Any]) -> None:
    """In one it is a convolution, in the other a product."""
    model = Network()
    model.first, model.aside = E3nnForm(), nn.ModuleList()
    model.aside.append(model.first.tp)
    before = model.first.tp(torch.ones(2, 16), torch.ones(2, 4), torch.ones(2, 16))
    accelerate(model)
    assert type(model.aside[0]) is AcceleratedMessages
    torch.testing.assert_close(model.aside[0](torch.ones(2, 16), torch.ones(2, 4), torch.ones(2, 16)), before)
    assert is_lazy(model.first)
    assert not is_lazy(model.aside)


def test_scripting_says_what_to_do() -> None:
    model = E3nnForm()
    accelerate(model, check=False)
    with pytest.raises(ConfigError, match="must hold no replacement but products"):
        torch.jit.script(model)
