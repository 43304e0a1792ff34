"""Weights and constants travel: e3nn's state dicts both ways, copies, pickles, dtypes, the meta device, optimisers."""

import random
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis import given
from hypothesis import strategies as st

import eqlayers as eq
from eqlayers import Linear, TensorProduct
from eqlayers.core.backends import whole
from eqlayers.models import MoleculeNetwork
from tests.each import each

ARGS = (
    "2x0e + 2x1o",
    "2x1o + 1x0e",
    "2x1o + 1x5o + 2x0e",
    [(0, 0, 0, "uvu", True), (1, 0, 2, "uuw", True), (1, 1, 0, "uvu", False)],
)


def exchange(ours: Any, theirs: Any) -> None:
    """Both directions, strictly; the weights arrive bit by bit and so does everything e3nn generates."""
    ours = ours.double()
    state = theirs.state_dict()
    assert ours.load_state_dict(state).missing_keys == []
    assert torch.equal(ours.weight, theirs.weight)
    mine = ours.state_dict()
    assert set(mine) == set(state)
    for key, value in state.items():
        assert mine[key].dtype == value.dtype, key
        torch.testing.assert_close(mine[key], value, rtol=0, atol=1e-15, msg=key)
    changed = {k: v + 1 if k in ("weight", "bias") else v for k, v in mine.items()}
    theirs.load_state_dict(changed)
    assert torch.equal(theirs.weight, ours.weight + 1)


@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=20)
def test_random_products_exchange_states(twins: Any, number: int) -> None:
    dice = random.Random(number)
    case = twins.product(dice)
    options = {
        "compile_right": (dice.random() < 0.5),
        "_specialized_code": dice.choice([None, True, False]),
    }
    shared = dice.random() < 0.5
    kwargs: dict[str, Any] = {**case.kwargs, **options, "shared_weights": shared, "internal_weights": shared}
    if all(not row[4] for row in case.args[3]):
        kwargs["internal_weights"] = False
    ours = TensorProduct(*case.args, **kwargs)
    try:
        theirs = twins.e3nn(o3.TensorProduct, *case.args, **kwargs)
    except (NotImplementedError, IndexError):  # e3nn 0.6 has no `right` for some modes and for paths without weight
        assert kwargs["compile_right"]
        assert set(ours.state_dict()) == {"weight", "output_mask"}
        return
    exchange(ours, theirs)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("FullyConnectedTensorProduct", ("2x0e + 1o", "1o", "2x1o + 1e")),
        ("FullTensorProduct", ("2x0e + 2x1o", "2x1o + 1e")),
        ("ElementwiseTensorProduct", ("2x0e + 2x1o", "4x1o")),
        ("TensorSquare", ("3x0e + 2x1o",)),
        ("TensorSquare", ("3x0e + 2x1o", "2x0e + 1e")),
    ],
)
def test_derived_products_exchange_states(twins: Any, name: str, args: tuple[Any, ...]) -> None:
    exchange(getattr(eq, name)(*args), twins.e3nn(getattr(o3, name), *args))


@pytest.mark.parametrize(
    "options", [{}, {"biases": True}, {"f_in": 2, "f_out": 3, "biases": True}, {"shared_weights": False}]
)
def test_linear_exchanges_states(twins: Any, options: dict[str, Any]) -> None:
    args = ("2x0e + 2x1o", "3x0e + 1x1o + 1x2e")
    exchange(Linear(*args, **options), twins.e3nn(o3.Linear, *args, **options))


def test_states_of_nested_modules_keep_their_prefix(twins: Any) -> None:
    ours = torch.nn.ModuleDict({"a": TensorProduct(*ARGS), "b": Linear("2x0e", "3x0e")}).double()
    theirs = torch.nn.ModuleDict({"a": twins.e3nn(o3.TensorProduct, *ARGS), "b": twins.e3nn(o3.Linear, "2x0e", "3x0e")})
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    with pytest.raises(RuntimeError, match=r"Unexpected key.*a\.something"):
        ours.load_state_dict({**ours.state_dict(), "a.something": torch.zeros(1)})
    with pytest.raises(RuntimeError, match=r"Missing key.*a\.weight"):
        ours.load_state_dict({k: v for k, v in ours.state_dict().items() if k != "a.weight"})


def test_saving_leaves_the_default_dtype_out(twins: Any) -> None:
    ours = TensorProduct(*ARGS).double()
    with twins.default_dtype(torch.float16):
        state = ours.state_dict()
    for key, value in state.items():
        if "_w3j_" in key:
            degrees = map(int, key.rsplit("_w3j_", 1)[1].split("_"))
            assert torch.equal(value, o3.wigner_3j(*degrees, dtype=torch.float64)), key


MODULES: list[Callable[[], torch.nn.Module]] = [
    lambda: TensorProduct(*ARGS),
    lambda: eq.TensorSquare("2x0e + 2x1o", "2x0e"),
    lambda: Linear("2x0e + 2x1o", "3x0e + 1o", biases=True),
    lambda: eq.SO3Scale("2x0e + 2x1o"),
    lambda: eq.SO3Scale("2x0e + 2x1o", "fixed", 1 / 3),
]


def call(module: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    widths = [module.irreps_in1.dim, module.irreps_in2.dim] if type(module) is TensorProduct else [8]
    out: torch.Tensor = module(*(torch.randn(4, w, generator=generator).to(dtype) for w in widths))
    return out.detach()


@each("make", MODULES)
@each("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_modules_move_between_dtypes(make: Any, dtype: torch.dtype) -> None:
    module = make()
    before = call(module)
    assert call(module.to(dtype), dtype).dtype == dtype
    after = call(module.to(torch.float32))
    assert float((after - before).abs().max()) <= 8 * torch.finfo(dtype).eps * float(before.abs().max()) + 1e-6
    assert call(make().half(), torch.float16).dtype == torch.float16


@pytest.mark.kernels
def test_meta_device_construction_of_a_model() -> None:
    with torch.device("meta"):
        model = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1)
    real = MoleculeNetwork(hidden="4x0e + 4x1o", layers=1)
    model = model.to_empty(device="cpu")
    model.load_state_dict(real.state_dict())
    inputs = torch.tensor([1, 6]), torch.randn(2, 3), torch.tensor([[0, 1], [1, 0]])
    assert torch.equal(model(*inputs), real(*inputs))


def test_the_default_device_does_not_reach_the_coefficients() -> None:
    plain = TensorProduct(*ARGS, backend="torch")
    x, y, weight = torch.randn(3, 8), torch.randn(3, 7), plain.weight.detach()
    want = plain(x, y, weight)
    whole._whole.cache_clear()
    torch.set_default_device("meta")
    try:
        result = TensorProduct(*ARGS, backend="torch")(x, y, weight)
    finally:
        torch.set_default_device(None)
    assert torch.equal(result, want)


def test_optimizers_see_the_parameters() -> None:
    model = torch.nn.Sequential(Linear("2x0e", "3x0e"), eq.SO3Scale("3x0e"), Linear("3x0e", "1x0e", biases=True))
    assert [name for name, _ in model.named_parameters()] == ["0.weight", "1.weight", "2.weight", "2.bias"]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(8, 2)
    before = model(x).square().mean()
    before.backward()
    optimizer.step()
    assert model(x).square().mean() < before
    product = TensorProduct(*ARGS)
    assert [n for n, _ in product.named_parameters()] == ["weight"]
    assert [n for n, _ in TensorProduct(*ARGS, internal_weights=False).named_parameters()] == []
