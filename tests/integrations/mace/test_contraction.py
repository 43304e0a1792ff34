"""MACE's symmetric contraction in a model before and after `accelerate`: numbers, weights, tensors, what is left."""

import copy
import pickle
from typing import Any

import pytest
import torch
from e3nn import o3
from mace import modules
from mace.modules import blocks
from torch import Tensor, nn
from torch.nn.functional import one_hot

from eqlayers.errors import ConfigError, MismatchError
from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.contraction import AcceleratedSymmetricContraction

SPECIES = torch.tensor([1, 0, 2, 1, 1])
CASES = [
    ("0e + 1o + 2e", "0e + 1o", 3),
    ("1o + 0e", "1o + 0e", 2),
    ("0e + 1o", "0e", 4),
    ("0e + 1o", "1o", 1),
    ("0e + 1o", "2e + 0e", 3),  # 2e is not linear in x: MACE zeroes weights of another degree
    ("0e + 0o + 1e + 1o", "1e", 2),  # couplings that are antisymmetric, which are rounding
]


def contraction(case: tuple[str, str, int], dtype: torch.dtype = torch.float64, elements: int = 3) -> Any:
    torch.set_default_dtype(dtype)
    torch.manual_seed(1)
    three = [o3.Irreps([(3, ir) for _, ir in o3.Irreps(text)]) for text in case[:2]]
    return modules.SymmetricContraction(*three, case[2], num_elements=elements)


def results(layer: nn.Module, y: Tensor, dtype: torch.dtype) -> list[Tensor]:
    """Result, gradient, and gradients of a loss of both by x and all weights."""
    generator = torch.Generator().manual_seed(2)
    dim = sum(ir.dim for _, ir in layer.irreps_in)
    x = torch.randn(len(y), 3, dim, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    z = layer(x, y.to(dtype))
    (dx,) = torch.autograd.grad(z.sin().sum(), x, create_graph=True)
    wanted = [x, *(p for p in layer.parameters() if p.requires_grad)]
    grads = torch.autograd.grad(z.square().sum() + dx.square().sum(), wanted, allow_unused=True)
    return [z, dx, *(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True))]


def assert_equal(tensors: list[Tensor], expected: list[Tensor], roundings: float = 1e3) -> None:
    for one, other in zip(tensors, expected, strict=True):
        error = float((one.double() - other.double()).detach().abs().max())
        assert error <= roundings * torch.finfo(one.dtype).eps * max(1.0, float(other.detach().abs().max()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numbers_weights_and_state(case: tuple[str, str, int], dtype: torch.dtype) -> None:
    layer, y = contraction(case, dtype), one_hot(SPECIES, 3)
    model, expected = nn.Sequential(layer), results(layer, y, dtype)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    parameters = dict(model.named_parameters())
    report = accelerate(model, backend="torch")
    assert (report.coverage.modules, report.coverage.known_modules, report.coverage.elsewhere) == (2, 1, ())
    (row,) = report.replaced
    assert (row.kind, row.target, row.backend) == ("SymmetricContraction", "contraction", "torch")
    assert row.paths == sum(value.shape[-1] for key, value in state.items() if "U_matrix" in key)
    assert row.error is not None
    assert row.error <= 1
    assert not row.note
    new = model[0]
    assert type(new) is AcceleratedSymmetricContraction
    assert list(dict(model.named_parameters())) == list(parameters)
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    after = model.state_dict()
    assert list(after) == list(state)
    assert all(torch.equal(after[key], value) and after[key].dtype == value.dtype for key, value in state.items())
    assert_equal(results(new, y, dtype), expected, 1e4)
    with torch.no_grad():  # a step of an optimizer that was there before
        for parameter in parameters.values():
            parameter.mul_(0.9)
    stepped = results(new, y, dtype)
    assert deaccelerate(model)[0] is layer
    assert_equal(stepped, results(layer, y, dtype), 1e4)


def test_mixed_species() -> None:
    layer = contraction(CASES[0])
    model, y = nn.Sequential(layer), torch.randn(5, 3, dtype=torch.float64)
    expected = results(layer, y, torch.float64)
    accelerate(model, backend="torch")
    assert_equal(results(model[0], y, torch.float64), expected, 1e4)


@pytest.mark.filterwarnings("ignore:The TorchScript type system:UserWarning")
@pytest.mark.parametrize("agnostic", [False, True])
def test_the_block_of_a_network(agnostic: bool) -> None:
    torch.set_default_dtype(torch.float64)
    irreps = [o3.Irreps("3x0e + 3x1o"), o3.Irreps("3x0e + 3x1o")]
    block = blocks.EquivariantProductBasisBlock(
        *irreps, 2, use_sc=True, num_elements=3, use_agnostic_product=agnostic, use_reduced_cg=False
    )
    model = nn.ModuleDict({"block": block})
    x, sc, y = torch.randn(5, 3, 4), torch.randn(5, 12), one_hot(SPECIES, 3).double()
    expected = block(x, sc, y)
    report = accelerate(model, backend="torch")
    assert [row.path for row in report.replaced] == ["block.symmetric_contractions", "block.linear"]
    assert block.symmetric_contractions.num_elements == (1 if agnostic else 3)
    assert_equal([block(x, sc, y)], [expected])


def test_couplings_of_another_basis() -> None:
    """Couplings of the module count, at the call and when they are loaded: here each path is a mixture of two."""
    layer, y = contraction(CASES[0]), one_hot(SPECIES, 3)
    mixed = contraction(CASES[0])
    with torch.no_grad():
        for part in mixed.contractions:
            part.U_matrix_3.add_(part.U_matrix_3.flip(-1), alpha=0.5)
            part.U_matrix_2.neg_()
    ours, theirs = (results(one, y, torch.float64) for one in (layer, mixed))
    assert float((ours[0] - theirs[0]).detach().abs().max()) > 0.1
    model, other = nn.Sequential(layer), nn.Sequential(mixed)
    for one, expected in ((model, ours), (other, theirs)):
        assert accelerate(one, backend="torch").replaced
        assert_equal(results(one[0], y, torch.float64), expected, 1e4)
    model.load_state_dict({key: value.clone() for key, value in other.state_dict().items()})
    assert_equal(results(model[0], y, torch.float64), theirs, 1e4)
    assert_equal(results(deaccelerate(model)[0], y, torch.float64), theirs)
    wrong = {key: value.clone() for key, value in other.state_dict().items()}
    wrong["0.contractions.0.U_matrix_2"][0] += 1
    with pytest.raises(RuntimeError, match=r"0\.contractions\.0\.U_matrix_2 must"):
        other.load_state_dict(wrong)
    del wrong["0.contractions.0.U_matrix_2"]
    with pytest.raises(RuntimeError, match="Missing key"):
        other.load_state_dict(wrong)


def test_copies_and_dtypes() -> None:
    model, y = nn.Sequential(contraction(CASES[0])), one_hot(SPECIES, 3)
    plain = copy.deepcopy(model)
    accelerate(model, backend="torch")
    expected = results(model[0], y, torch.float64)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert not {id(p) for p in other.parameters()} & {id(p) for p in model.parameters()}
        assert all(torch.equal(a, b) for a, b in zip(results(other[0], y, torch.float64), expected, strict=True))
        assert type(deaccelerate(other)[0]) is modules.SymmetricContraction
        assert {id(p) for p in other.parameters()} == {id(p) for p in other[0].parameters()}
    model.float()
    assert {value.dtype for key, value in model.state_dict().items() if "zeroed" not in key} == {torch.float32}
    assert_equal(results(model[0], y, torch.float32), expected, 1e4)
    deaccelerate(model)
    for key, value in plain.float().state_dict().items():
        assert torch.equal(model.state_dict()[key], value)
    assert_equal(results(model[0], y, torch.float32), results(plain[0], y, torch.float32))
    apart = accelerate(model, inplace=False, backend="torch").model
    assert type(model[0]) is modules.SymmetricContraction
    assert type(apart[0]) is AcceleratedSymmetricContraction


def test_coefficients_of_float32_in_a_model_of_float64() -> None:
    model = nn.Sequential(contraction(CASES[0], torch.float32).double())
    (row,) = accelerate(model, backend="torch").replaced
    assert "keep the rounding of float32" in row.note


def test_weights_exchanged_by_maces_tools() -> None:
    """Its fine-tuning puts in weights of other elements."""
    layer = contraction(CASES[0])
    model = nn.Sequential(layer)
    accelerate(model, backend="torch")
    for part in model[0].contractions:
        part.weights_max = nn.Parameter(part.weights_max[[2, 1]].clone())
        part.weights = nn.ParameterList(weight[[2, 1]].clone() for weight in part.weights)
    y = one_hot(SPECIES % 2, 2)
    exchanged = results(model[0], y, torch.float64)
    deaccelerate(model)
    assert_equal(exchanged, results(layer, y, torch.float64), 1e4)


class Doubled(modules.SymmetricContraction):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return 2 * super().forward(x, y)


class SymmetricContraction(nn.Module):
    """A module like cuequivariance's: the name is the same, the weights are not."""

    def __init__(self) -> None:
        super().__init__()
        self.irreps_in, self.irreps_out = "3x0e", "3x0e"
        self.weight = nn.Parameter(torch.ones(3, 2, 3))

    def forward(self, x: Tensor, indices: Tensor) -> Tensor:
        return x


def doubled() -> nn.Module:
    return Doubled(o3.Irreps("3x0e + 3x1o"), o3.Irreps("3x0e"), 2, num_elements=3)


def hooked() -> nn.Module:
    layer = contraction(CASES[1])
    layer.contractions[0].register_forward_hook(lambda *args: None)
    return layer


def not_equivariant() -> nn.Module:
    layer = contraction(CASES[1])
    layer.contractions[0].U_matrix_2[0, 0, 0] += 1
    return layer


def more_weights() -> nn.Module:
    layer = contraction(CASES[1])
    layer.contractions[1].shift = nn.Parameter(torch.ones(3))
    return layer


def two_correlations() -> nn.Module:
    layer = contraction(CASES[1])
    layer.contractions[1] = contraction((*CASES[1][:2], 3)).contractions[1]
    return layer


LEFT = {
    "own forward": (doubled, "class Doubled that defines forward beside what MACE's does"),
    "another package's": (SymmetricContraction, "not to MACE, and has weights of its own kind"),
    "hooks": (hooked, "has hooks on its parts"),
    "a parameter": (more_weights, "holds contractions.1, which does not hold what MACE's holds: shift"),
    "correlations": (two_correlations, "does not hold what MACE's contraction holds: correlations ['2', '3']"),
    "tensors": (not_equivariant, "U_matrix_2 must be an equivariant tensor of 1x1o+1x0e"),
    "degree": (lambda: contraction(("0e + 1o", "0e", 5)), "at most correlation 4"),
    "meta": (lambda: contraction(CASES[1]).to("meta"), "is on the meta device"),
    "accelerated": (
        lambda: accelerate(contraction(CASES[1]), inplace=False, backend="torch").model,
        "is accelerated already",
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name: str) -> None:
    make, reason = LEFT[name]
    torch.set_default_dtype(torch.float64)
    layer = make()
    model = nn.Sequential(layer)
    (row,) = accelerate(model, backend="torch").rows
    assert reason in row.reason
    assert model[0] is layer


CHANGES = {
    "a value": lambda z, x, y: z * (1 + 1e-9),
    "a derivative": lambda z, x, y: z.detach() + (z - z.detach()) * 1.001,
    "mixed species": lambda z, x, y: torch.where(((y == 1).sum(1) == 1).unsqueeze(1), z, z + 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_wrong_contractions_are_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right, change = AcceleratedSymmetricContraction.forward, CHANGES[name]
    monkeypatch.setattr(AcceleratedSymmetricContraction, "forward", lambda self, x, y: change(right(self, x, y), x, y))
    model = nn.Sequential(contraction(CASES[0]))
    layer = model[0]
    with pytest.raises(MismatchError, match=r"replacement of 0 \(SymmetricContraction\) must"):
        accelerate(model, backend="torch")
    assert model[0] is layer


def test_torchscript_says_why_not() -> None:
    model = nn.Sequential(contraction(CASES[1]))
    accelerate(model, backend="torch")
    with pytest.raises(ConfigError, match=r"harmonics to be scripted, got AcceleratedSymmetricContraction"):
        torch.jit.script(model)


def test_hooks_on_the_whole_survive() -> None:
    model, seen = nn.Sequential(contraction(CASES[1])), []
    model[0].register_forward_hook(lambda module, *args: seen.append(type(module).__name__))
    accelerate(model, backend="torch")
    results(model[0], one_hot(SPECIES, 3), torch.float64)
    results(deaccelerate(model)[0], one_hot(SPECIES, 3), torch.float64)
    assert seen == ["AcceleratedSymmetricContraction", "SymmetricContraction"]
