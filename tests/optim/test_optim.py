"""SOAP: its definition, another package's, and what users do with an optimizer."""

import copy
import io
import pickle
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from e3nn import o3
from pytorch_optimizer import SOAP as OTHER
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from eqlayers import FullyConnectedTensorProduct, Linear
from eqlayers.errors import ConfigError, DataError
from eqlayers.models import MACE, MoleculeNetwork, NequIP
from eqlayers.nn import Gate, SpeciesLinear
from eqlayers.optim import SOAP, soap
from eqlayers.optim.matrices import shapes_of
from eqlayers.optim.stack import blocks_of
from tests.soap_by_loops import soap_of_matrix


def network(dtype: torch.dtype = torch.float64) -> nn.Module:
    """Matrices of several sizes, some larger than a block, among them single rows, and vectors."""
    torch.manual_seed(3)
    layers = [
        Linear("6x0e + 4x1o + 1x2e", "9x0e + 4x1o + 1x2e", biases=True),
        SpeciesLinear("9x0e + 4x1o", "3x0e + 2x1o", 2),
        FullyConnectedTensorProduct("3x0e + 2x1o", "2x0e", "4x0e + 2x1o"),
        nn.Linear(4, 10),
        nn.LayerNorm(10),
    ]
    return nn.ModuleList(layers).to(dtype)


def draw(model: nn.Module, seed: int, but: Callable[[str], bool] = lambda name: False) -> None:
    """Random gradients for a step, None for the parameters of some names."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        gradient = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        parameter.grad = None if but(name) else gradient.to(parameter.dtype)


def run(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    """Steps with gradients that depend on their numbers alone; copies of the weights after them."""
    for step in steps:
        draw(model, step)
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def far(first: list[Tensor], second: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(first, second, strict=True))


def test_every_block_follows_the_definition_and_the_rest_adamw() -> None:
    model, steps = network(), 25
    expected = [parameter.detach().clone() for parameter in model.parameters()]
    gradients = []
    for step in range(steps):
        draw(model, step)
        gradients.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
    shapes = [those for layer in model.modules() for those in shapes_of(layer).values()]
    inside = 0
    for number, those in enumerate(shapes):
        flat, rest = expected[number].view(-1), torch.ones(expected[number].numel(), dtype=torch.bool)
        for block in blocks_of(those, 8):
            index, rest[block.indices()] = block.indices(), False
            parts = [one[number].reshape(-1)[index].view(block.size) for one in gradients]
            flat[index] -= 0.1 * sum(soap_of_matrix(parts, precondition_every=10)).flatten()  # type: ignore[union-attr]
            inside += len(index)
        vector = nn.Parameter(flat[rest].clone())
        adam = torch.optim.AdamW([vector], lr=0.1, betas=(0.95, 0.98), weight_decay=0)
        for one in gradients:
            vector.grad = one[number].reshape(-1)[rest]
            adam.step()
        flat[rest] = vector.detach()
    optimizer = SOAP(model, lr=0.1, block=8, precondition_every=10)
    assert far(run(model, optimizer, range(steps)), expected) < 1e-12
    assert repr(optimizer).startswith(f"SOAP({inside} numbers of ")


def test_a_plain_matrix_is_updated_as_by_another_package() -> None:
    ours, theirs = nn.Linear(7, 7, bias=False).double(), nn.Linear(7, 7, bias=False).double()
    theirs.load_state_dict(ours.state_dict())
    first = SOAP(ours, lr=0.1, gram_every=1, precondition_every=10, eps=1e-30)
    options = {"betas": (0.95, 0.98), "shampoo_beta": 0.95, "weight_decay": 0, "eps": 1e-30}
    second = OTHER(theirs.parameters(), lr=0.1, **options)
    # theirs renews eigenvectors in float32, and ours shifts eigenvalues by 1e-6
    assert far(run(ours, first, range(100)), run(theirs, second, range(100))) < 1e-4


def test_e3nns_layers_are_updated_as_ours() -> None:
    theirs = o3.Linear("6x0e + 4x1o", "5x0e + 3x1o", biases=True).double()
    ours = Linear("6x0e + 4x1o", "5x0e + 3x1o", biases=True).double()
    ours.load_state_dict(theirs.state_dict())
    first, second = (SOAP(layer, precondition_every=10) for layer in (ours, theirs))
    assert same(run(ours, first, range(15)), run(theirs, second, range(15)))


def test_rotated_and_inverted_inputs_do_not_change_a_training() -> None:
    ends = []
    x, y = torch.randn(20, 6 + 12, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    for matrix in (torch.eye(3, dtype=torch.float64), -o3.rand_matrix().double()):
        torch.manual_seed(0)
        gate = Gate("8x0e", [torch.tanh], "4x0e", [torch.sigmoid], "4x1o")
        model = nn.Sequential(Linear("6x0e + 4x1o", gate.irreps_in), gate, Linear(gate.irreps_out, "1x1o")).double()
        optimizer = SOAP(model, lr=0.03, precondition_every=10)
        rotations = [o3.Irreps(irreps).D_from_matrix(matrix) for irreps in ("6x0e + 4x1o", "1x1o")]
        inputs, labels = (one @ rotation.T for one, rotation in zip((x, y), rotations, strict=True))
        for _ in range(15):
            optimizer.zero_grad()
            (model(inputs) - labels).square().mean().backward()
            optimizer.step()
        ends.append([parameter.detach() for parameter in model.parameters()])
    assert far(*ends) < 1e-7


@pytest.mark.parametrize("way", ["state_dict", "deepcopy", "pickle"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_resumed_training_is_the_unbroken_one_bit_for_bit(way: str, dtype: torch.dtype) -> None:
    model = network(dtype)
    unbroken = run(model, SOAP(model, block=8, precondition_every=3), range(20))
    model = network(dtype)
    optimizer = SOAP(model, block=8, precondition_every=3)
    run(model, optimizer, range(8))
    if way == "state_dict":
        torch.save(optimizer.state_dict(), file := io.BytesIO())
        optimizer = SOAP(model, block=8, precondition_every=3)
        optimizer.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    else:
        both = (model, optimizer)
        model, optimizer = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
    assert same(run(model, optimizer, range(8, 20)), unbroken)
    state = optimizer.state_dict()["state"]
    of_state = torch.float64 if dtype == torch.float64 else torch.float32
    assert {value.dtype for one in state.values() for name, value in one.items() if name != "step"} == {of_state}
    assert [one["exp_avg"].shape for one in state.values()] == [parameter.shape for parameter in state_order(optimizer)]


def state_order(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def test_reading_the_state_changes_nothing() -> None:
    model, twin = network(), network()
    optimizer, other = SOAP(model), SOAP(twin)
    for step in range(13):
        assert same(run(model, optimizer, range(step, step + 1)), run(twin, other, range(step, step + 1)))
        optimizer.state_dict()


def test_frozen_weights_stay_and_thawed_ones_begin_where_they_were() -> None:
    def frozen(name: str) -> bool:
        return name.startswith("0.")

    model, alone = network(), network()
    optimizer, other = SOAP(model, lr=0.1), SOAP(alone, lr=0.1)
    run(model, optimizer, range(5))
    before = [parameter.detach().clone() for parameter in model[0].parameters()]  # type: ignore[index]
    for step in range(5, 12):
        draw(model, step, frozen)
        optimizer.step()
    assert same(before, list(model[0].parameters()))  # type: ignore[index]
    run(model, optimizer, range(12, 18))
    run(alone, other, range(5))  # the frozen steps never were, for these parameters
    run(alone, other, range(12, 18))
    assert far(run(model, optimizer, range(0))[:2], run(alone, other, range(0))[:2]) < 1e-12
    assert {int(state["step"]) for state in optimizer.state_dict()["state"].values()} == {11, 18}


def test_groups_have_rates_and_decay_of_their_own() -> None:
    model, twin = network(), network()
    slow, fast = list(model[0].parameters()), list(model[1:].parameters())  # type: ignore[index]
    groups = [{"params": slow, "lr": 0.01, "weight_decay": 0.5}, {"params": fast}]
    optimizer = SOAP(model, groups, lr=0.1)
    start = run(model, optimizer, range(0))
    # all parts of the update are as with one rate, and are scaled
    end, plain = run(model, optimizer, range(1)), run(twin, SOAP(twin, lr=0.1), range(1))
    for number, (before, after, other) in enumerate(zip(start, end, plain, strict=True)):
        decayed, scale = (before * (1 - 0.01 * 0.5), 0.1) if number < len(slow) else (before, 1.0)
        torch.testing.assert_close(after, decayed + scale * (other - before), rtol=0, atol=1e-15)


def test_matrices_alone_are_decayed_by_default() -> None:
    model = network()
    groups = SOAP(model, weight_decay=0.1).param_groups
    assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
    assert {p.ndim for p in groups[1]["params"]} == {1}
    assert len(state_order(SOAP(model))) == len([*model.parameters()])


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf, 1e19])
def test_a_gradient_that_is_not_finite_changes_nothing(bad: float) -> None:
    model, twin = network(torch.float32), network(torch.float32)
    options: dict[str, Any] = {"precondition_every": 4, "weight_decay": 0.1}
    optimizer, other = SOAP(model, **options), SOAP(twin, **options)
    for step in (0, 5):
        run(model, optimizer, range(min(step, 1), step))
        before, state = run(model, optimizer, range(0)), copy.deepcopy(optimizer.state_dict()["state"])
        draw(model, step)
        model[3].weight.grad[1, 2] = bad  # type: ignore[index, union-attr]
        with pytest.raises(DataError, match=r"others in 1 of 8 parameters, of shapes .10, 4."):
            optimizer.step()
        assert same(before, run(model, optimizer, range(0)))
        after = optimizer.state_dict()["state"]
        assert all(torch.equal(state[i][name], after[i][name]) for i in state for name in state[i])
        run(model, optimizer, range(step, step + 1))
    assert same(run(model, optimizer, range(6, 9)), run(twin, other, range(9)))


@pytest.mark.parametrize("bad", [0, 4, 5, 8])
def test_a_capturable_step_that_is_not_finite_changes_no_weight_and_no_average(bad: int) -> None:
    model = network()
    options: dict[str, Any] = {"precondition_every": 4, "weight_decay": 0.1, "capturable": True}
    optimizer = SOAP(model, **options)
    run(model, optimizer, range(bad))
    before, state = run(model, optimizer, range(0)), copy.deepcopy(optimizer.state_dict()["state"])
    draw(model, bad)
    model[3].weight.grad[1, 2] = torch.nan  # type: ignore[index, union-attr]
    optimizer.step()
    assert same(before, run(model, optimizer, range(0)))
    after = optimizer.state_dict()["state"]
    kept = {"gram"} if bad % 4 == 0 else {"exp_avg", "exp_avg_sq", "gram", "basis"}
    assert all(torch.equal(state[i][name], after[i][name]) for i in state for name in kept & state[i].keys())
    assert {int(one["step"]) for one in after.values()} == {bad + 1}
    resumed = copy.deepcopy(model)
    again = SOAP(resumed, **options)
    again.load_state_dict(optimizer.state_dict())
    end = run(model, optimizer, range(bad + 1, bad + 9))
    assert same(end, run(resumed, again, range(bad + 1, bad + 9)))
    assert all(parameter.isfinite().all() for parameter in end)


class Operators(TorchDispatchMode):
    """Names of the operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_a_recorded_step_has_the_same_operators_always_and_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph replays the operators; `renew` is called between replays."""
    model, twin = network(), network()
    options: dict[str, Any] = {"precondition_every": 4, "gram_every": 2, "capturable": True}
    optimizer, eager = SOAP(model, **options), SOAP(twin, **options)
    monkeypatch.setattr(soap, "is_recording", lambda tensor: True)
    draw(model, 0)
    with pytest.raises(ConfigError, match="not the first of its parameters"):
        optimizer.step()
    with pytest.raises(ConfigError, match="must be of capturable=True"):
        SOAP(model).step()
    monkeypatch.setattr(soap, "is_recording", lambda tensor: False)
    run(model, optimizer, range(1))
    monkeypatch.setattr(soap, "is_recording", lambda tensor: True)
    lists = []
    for step in range(1, 14):
        draw(model, step)
        with Operators() as operators:
            optimizer.step()
        lists.append(operators.names)
        if step % 4 == 0:
            optimizer.renew()
    assert all(names == lists[0] for names in lists)
    assert not {"aten._local_scalar_dense.default", "aten.is_nonzero.default"} & {*lists[0]}
    monkeypatch.setattr(soap, "is_recording", lambda tensor: False)
    assert same(run(model, optimizer, range(0)), run(twin, eager, range(14)))


def test_gradients_of_any_strides_count_as_they_are() -> None:
    model, twin = network(), network()
    optimizer, other = SOAP(model, block=4), SOAP(twin, block=4)
    for step in range(4):
        run(twin, other, range(step, step + 1))
        draw(model, step)
        for parameter in model.parameters():
            assert parameter.grad is not None
            wide = parameter.grad.new_zeros(*parameter.shape, 3)
            wide[..., 1] = parameter.grad
            parameter.grad = wide[..., 1]
        optimizer.step()
    assert same(run(model, optimizer, range(0)), run(twin, other, range(0)))
    model[0].weight.grad = torch.ones((), dtype=torch.float64).expand(model[0].weight.shape)  # type: ignore[index]
    optimizer.step()


def test_a_copy_with_a_schedule_steps_its_own_network() -> None:
    model = network()
    optimizer = SOAP(model)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    run(model, optimizer, range(3))
    for other, again in (copy.deepcopy((model, optimizer)), pickle.loads(pickle.dumps((model, optimizer)))):
        before = run(model, optimizer, range(0))
        moved = run(other, again, range(3, 5))
        assert same(before, run(model, optimizer, range(0)))
        assert far(moved, before) > 1e-3


def test_a_parameter_that_changes_its_group_has_the_rate_of_the_new_one() -> None:
    model = network()
    optimizer = SOAP(model)
    run(model, optimizer, range(2))
    moved = optimizer.param_groups[-1]["params"].pop()
    optimizer.add_param_group({"params": [moved], "lr": 0.0})
    before = moved.detach().clone()
    run(model, optimizer, range(2, 4))
    assert torch.equal(before, moved)


def test_blocks_of_any_size_have_more_than_one_row() -> None:
    for rows, columns, block in product((2, 3, 5, 7, 11, 13, 67, 85, 131), (2, 7, 16, 64), (4, 6, 7, 64)):
        blocks = blocks_of([(rows, columns)], block)
        assert {min(one.size) > 1 and max(one.size) <= block for one in blocks} == {True}
        covered = torch.cat([one.indices() for one in blocks])
        assert torch.equal(covered.sort()[0], torch.arange(rows * columns))
    assert len(blocks_of([(85, 85)], 64)) == 4


def test_a_rate_in_a_tensor_and_a_closure() -> None:
    model, twin = network(), network()
    optimizer = SOAP(model, lr=torch.tensor(0.1, dtype=torch.float64), capturable=True)
    assert far(run(model, optimizer, range(12)), run(twin, SOAP(twin, lr=0.1), range(12))) < 1e-13
    assert optimizer.step(lambda: 5.0) == 5.0


@pytest.mark.parametrize(
    "model",
    [
        MACE(["H", "C", "O"], hidden="64x0e+64x1o", correlation=3, lmax=3, layers=2, radial_hidden=[32]),
        NequIP(["H", "C", "O"], hidden="32x0e+32x1o+32x2e"),
        MoleculeNetwork(hidden="16x0e+16x1o+16x2e", lmax=2, layers=4, radial_hidden=[32]),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_state_is_a_few_times_as_large_as_that_of_adamw(model: nn.Module) -> None:
    run(model, optimizer := SOAP(model), range(1))
    numbers = sum(value.numel() for state in optimizer.state_dict()["state"].values() for value in state.values())
    assert 2.8 < numbers / (2 * sum(parameter.numel() for parameter in model.parameters())) < 3.4


def test_a_step_without_any_gradient_does_nothing() -> None:
    model = network()
    optimizer = SOAP(model)
    before = run(model, optimizer, range(0))
    optimizer.step()
    assert same(before, run(model, optimizer, range(0)))
    assert not optimizer.state_dict()["state"]


def test_groups_are_of_the_module_and_share_options() -> None:
    model = network()
    for params in ([{"params": nn.Linear(2, 2).parameters()}], [{"params": model.parameters(), "block": 4}]):
        with pytest.raises(ConfigError, match="a group of SOAP must have parameters that its module had"):
            SOAP(model, params)
    optimizer = SOAP(model)
    moved = optimizer.param_groups[-1]["params"].pop()
    with pytest.raises(ConfigError, match=r"^lr must"):
        optimizer.add_param_group({"params": [moved], "lr": -1.0})
    assert len(optimizer.param_groups) == 2


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"precondition_every": 0}, "precondition_every"),
        ({"gram_every": 0}, "gram_every"),
        ({"block": 3}, "block"),
        ({"lr": -1.0}, "lr"),
        ({"betas": (0.9,)}, "betas"),
        ({"betas": (0.9, 1.0)}, "betas"),
        ({"gram_beta": 1.0}, "gram_beta"),
        ({"eps": 0.0}, "eps"),
        ({"weight_decay": -0.1}, "weight_decay"),
        ({"capturable": 2}, "capturable"),
    ],
)
def test_options_are_checked(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} must"):
        SOAP(network(), **options)


def test_a_transposed_matrix_is_updated_unless_it_is_split() -> None:
    ends = []
    for transposed in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(6, 8).double()
        if transposed:
            model.weight.data = model.weight.data.T.contiguous().T
        ends.append(run(model, SOAP(model), range(3)))
    assert same(*ends)
    optimizer = SOAP(model, block=4)
    draw(model, 0)
    with pytest.raises(ConfigError, match="parameters that are split into blocks must be contiguous"):
        optimizer.step()


def test_other_parameters_and_gradients_are_refused() -> None:
    with pytest.raises(ConfigError, match="parameters must be real, got complex ones"):
        SOAP(nn.Linear(2, 2, dtype=torch.complex64))
    embedding = nn.Embedding(3, 4, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(DataError, match="gradients must be dense"):
        SOAP(embedding).step()
    for rate in (torch.tensor(-1.0), torch.tensor([0.1]), float("nan")):
        with pytest.raises(ConfigError, match=r"^lr must"):
            SOAP(network(), lr=rate)


def test_parameters_without_numbers_take_no_part() -> None:
    model = nn.ParameterList([torch.randn(0), torch.randn(3, 3)])
    before = model[1].detach().clone()
    run(model, SOAP(model), range(3))
    assert not torch.equal(before, model[1])


def test_a_module_must_have_parameters() -> None:
    with pytest.raises(ConfigError, match="a module must have parameters to be optimized, got ReLU"):
        SOAP(nn.ReLU())


def test_the_state_of_a_transposed_matrix_is_refused() -> None:
    wide, tall = nn.Linear(10, 4, bias=False), nn.Linear(4, 10, bias=False)
    run(wide, optimizer := SOAP(wide), range(1))
    with pytest.raises(DataError, match=r"got a parameter .10, 4. with"):
        SOAP(tall).load_state_dict(optimizer.state_dict())


def test_the_state_of_another_optimizer_is_refused() -> None:
    model = network()
    adam = torch.optim.AdamW(model.parameters())
    run(model, adam, range(1))
    run(model, other := SOAP(model, block=8), range(1))
    smaller = nn.Linear(4, 10)
    run(smaller, small := SOAP(smaller), range(1))
    damaged = SOAP(model)
    run(model, damaged, range(1))
    cut = damaged.state_dict()
    cut["state"][0] = cut["state"][0] | {"gram": torch.zeros(3)}
    noted = damaged.state_dict()
    noted["state"][0] = noted["state"][0] | {"note": "x"}
    fresh = torch.optim.AdamW(network().parameters()).state_dict()
    wrong: list[Any] = [adam.state_dict(), fresh, other.state_dict(), small.state_dict(), cut, noted, {}, None]
    for state in wrong:
        optimizer = SOAP(model)
        with pytest.raises(DataError, match="the state of SOAP must be of the same 8 parameters and blocks"):
            optimizer.load_state_dict(state)
        assert not optimizer.state
