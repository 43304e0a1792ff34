"""Lazy rows and messages that a forward changes, keeps, or hands to others: plain torch's numbers, or an error."""

import copy
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import e3nn
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eqlayers.errors import ConfigError
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.lazy import is_lazy
from tests.cases import e3nn_defaults
from tests.each import each
from tests.integrations.forms import E3nnForm, Layer
from tests.integrations.test_lazy import random_operands, results, same


def held(value: Tensor) -> Tensor:
    return value.register_hook(lambda g: 0.1 * g) and value


def doubled(value: Tensor) -> Tensor:
    alias = value
    alias *= 2
    return value


def set_in(value: Tensor) -> Tensor:
    value[value > 0.5] = 0
    value[:, :3] += 1
    return value


def viewed(value: Tensor) -> Tensor:
    value.view(-1)[:30].zero_()
    return value


def into(value: Tensor) -> Tensor:
    torch.mul(value.detach(), 2, out=(other := value.detach().clone()))
    return value + other


#: What a forward may do with rows or messages in place, and then go on with the name that it had.
CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "a method": lambda v: (v.mul_(torch.arange(1, len(v) + 1).unsqueeze(1)), v)[1],
    "a function": lambda v: (nn.functional.relu_(v), v)[1],
    "clamp": lambda v: (v.clamp_(-0.1, 0.1), v)[1],
    "mask": lambda v: (v.masked_fill_(v > 0.5, 0.0), v)[1],
    "columns": lambda v: (v[:, :3].mul_(3), v)[1],
    "an alias": doubled,
    "items": set_in,
    "a view": viewed,
    "out": into,
    "a hook": held,
    "whole division": lambda v: v - v.detach() // 1 + v.detach() % 1,
    "a kind": lambda v: v * (2 if isinstance(v, Tensor) else 5),
}


class Changed(Layer):
    """Rows, or messages, that are changed."""

    def __init__(self, change: Callable[[Tensor], Tensor], rows: bool) -> None:
        super().__init__()
        self.change, self.rows = change, rows

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        rows = x[edges[0]]
        rows = self.change(rows) if self.rows else rows
        message = self.tp(rows, attr, self.fc(edge))
        message = message if self.rows else self.change(message)
        return x.new_zeros(len(x), message.shape[1]).index_add(0, edges[1], message)


@each("change", CHANGES)
@each("rows", [True, False])
def test_changes_in_place_count(float64: None, change: str, rows: bool) -> None:
    model, operands = Changed(CHANGES[change], rows), random_operands()
    expected = results(model, operands)
    accelerate(model, check=False)
    same(results(model, operands), expected)


def test_rows_that_change_behind_their_product(float64: None) -> None:
    class Behind(Layer):
        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            rows = x[edges[0]].detach()
            message = self.tp(x[edges[0]] if self.training else rows, attr, self.fc(edge))
            rows.mul_(0)
            return x.new_zeros(len(x), message.shape[1]).index_add(0, edges[1], message)

    class Late(Layer):
        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            rows = x[edges[0]]
            message = self.tp(rows, attr, self.fc(edge))
            rows.mul_(0)
            return x.new_zeros(len(x), message.shape[1]).index_add(0, edges[1], message * 1)

    for model in (Behind(), Behind().eval()):
        operands = random_operands()
        expected = model(*operands)
        accelerate(model, check=False)
        torch.testing.assert_close(model(*operands), expected)
    late = Late()
    accelerate(late, check=False)
    with pytest.raises(ConfigError, match="must not change rows in place behind their product"):
        late(*[t.detach() for t in random_operands()])


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        return value * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 2


class TwiceSetUp(Twice):
    @staticmethod
    def forward(value: Tensor) -> Tensor:  # type: ignore[override]
        return value.view_as(value) * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass


@torch.jit.script
def scripted(value: Tensor) -> Tensor:
    return value * 2


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("function", [Twice.apply, TwiceSetUp.apply, scripted])
def test_functions_that_do_not_ask_are_an_error(float64: None, function: Any, rows: bool) -> None:
    """They would take lazy rows for the start of a graph, and gradients would be lost."""
    model, operands = Changed(function, rows), random_operands()
    model(*operands)
    accelerate(model, check=False)
    with pytest.raises((ConfigError, RuntimeError), match=r"gathers must|TorchScript interpreter"):
        model(*operands)
    with torch.no_grad():
        result = model(*operands)
    torch.testing.assert_close(result, deaccelerate(model)(*operands).detach())


def test_checkpoints(float64: None) -> None:
    class Saved(Layer):
        reentrant = False

        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            message = checkpoint(self.tp, x[edges[0]], attr, self.fc(edge), use_reentrant=self.reentrant)
            return x.new_zeros(len(x), message.shape[1]).index_add(0, edges[1], message)

    with e3nn_defaults(**dict.fromkeys(e3nn.get_optimization_defaults().keys() & {"jit_mode"}, "eager")):
        model, operands = Saved(), random_operands()  # torch 2.6 takes no checkpoint of a scripted product
    expected = results(model, operands)
    accelerate(model, check=False)
    same(results(model, operands), expected)
    model.reentrant = True
    with pytest.raises(ConfigError, match="gathers must"):
        model(*operands)


def test_a_forward_of_its_own_stays_beside_a_shared_product(float64: None) -> None:
    first, second, operands = E3nnForm(), E3nnForm(), random_operands()
    second.tp = first.tp
    second.forward = lambda *args: 10 * E3nnForm.forward(second, *args)  # type: ignore[method-assign]
    both = nn.ModuleList([first, second])
    expected = [one(*operands) for one in both]
    accelerate(both, check=False)
    assert [is_lazy(one) for one in both] == [True, False]
    torch.testing.assert_close([one(*operands) for one in both], expected)
    deaccelerate(both)
    torch.testing.assert_close([one(*operands) for one in both], expected)


class Scaled(E3nnForm):
    scale = 1.0

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        return self.scale * super().forward(x, edges, attr, edge) + self.tp.weight_numel * x.new_zeros(
            len(x), 32
        ).index_add(0, edges[1], self.tp(x[edges[0]], attr, self.fc(edge)))


def test_shallow_copies_run_their_own_forward(float64: None) -> None:
    model, operands = Scaled(), random_operands()
    accelerate(model, check=False)
    assert is_lazy(model)
    before = model(*operands)
    for other in (copy.copy(model), model._replicate_for_data_parallel()):
        other.scale = 5.0
        assert not torch.allclose(other(*operands), before)
    torch.testing.assert_close(model(*operands), before)


def test_hooks_that_come_later(float64: None) -> None:
    plain, operands = E3nnForm(), random_operands()
    model = copy.deepcopy(plain)
    accelerate(model, check=False)
    seen: list[int] = []
    for one in (plain, model):
        one.tp.register_full_backward_hook(lambda m, before, after: (seen.append(1), (10 * before[0], *before[1:]))[1])
        one.tp.register_forward_hook(lambda m, inputs, output: output.mul_(2))

    def gradients(one: nn.Module) -> list[Tensor]:
        value = one(*operands)
        return [value, *torch.autograd.grad(value.square().sum(), [operands[0], operands[2], one.fc.weight])]

    same(gradients(model), gradients(plain))
    assert len(seen) == 2


def test_what_is_kept_elsewhere_is_numbers(float64: None) -> None:
    Pair = namedtuple("Pair", "rows rest")

    class Keeping(Layer):
        def forward(self, data: Any, edges: Tensor, attr: Tensor, edge: Tensor) -> Any:
            x = data["x"]
            data["rows"], data["pair"] = x[edges[0]], Pair(x[edges[1]], OrderedDict(rows=x[edges[0]]))
            data["list"].append(x[edges[0]])
            self.kept = Pair(self.tp(x[edges[0]], attr, self.fc(edge)), object())
            data["sum"] = x.new_zeros(len(x), 32).index_add(0, edges[1], self.kept.rows)
            return data

    model, (x, *others) = Keeping(), random_operands()
    accelerate(model, check=False)
    data = {"x": x.detach().clone(), "list": (kept := [])}
    result = model(data, *others)
    assert result is data
    assert data["list"] is kept
    for value in (data["rows"], data["pair"].rows, data["pair"].rest["rows"], kept[0], data["sum"]):
        assert type(value) is Tensor
    expected, message = data["rows"].clone(), model.kept.rows.clone()
    data["x"].mul_(0)
    torch.testing.assert_close(data["rows"], expected)
    torch.testing.assert_close(model.kept.rows + 0, message)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_nodes_that_are_counted_from_the_end(float64: None, kind: str) -> None:
    """Rows as torch takes them; sums are refused, as torch does."""
    model, operands = E3nnForm(), random_operands()
    operands[1] = operands[1].clone()
    operands[1][["gather", "scatter"].index(kind), :3] -= len(operands[0])
    if kind == "gather":
        expected = results(model, operands)
        accelerate(model, check=False)
        same(results(model, operands), expected)
    else:
        accelerate(model, check=False)
        with pytest.raises(RuntimeError, match="index"):
            model(*operands)


def test_sums_in_other_words(float64: None) -> None:
    class Named(Layer):
        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            message = self.tp(x[edges[0]], attr, self.fc(edge))
            index = edges[1].view(-1, 1).expand_as(message)
            return torch.scatter_add(input=x.new_zeros(len(x), 32), dim=0, index=index, src=message)

    class Wrong(Layer):
        def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
            message = self.tp(x[edges[0]], attr, self.fc(edge))
            return x.new_zeros(len(x), 32).scatter_add(0, edges[1], message)

    model, wrong, operands = Named(), Wrong(), random_operands()
    expected = results(model, operands)
    accelerate(model, check=False)
    accelerate(wrong, check=False)
    same(results(model, operands), expected)
    with pytest.raises(RuntimeError, match="same number of dimensions"):
        wrong(*operands)


def test_products_that_were_taken_out(float64: None) -> None:
    model = E3nnForm()
    product = model.tp
    accelerate(model, check=False)
    model.tp = product
    deaccelerate(model)
    assert type(model) is E3nnForm
