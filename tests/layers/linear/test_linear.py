"""Linear against e3nn's: values, first two derivatives, all options; and what e3nn cannot run."""

import random
from collections import Counter
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import eqlayers as eq
from eqlayers import Linear, to_ir_mul, to_mul_ir
from eqlayers.errors import BackendError, ConfigError
from eqlayers.testing import check_derivatives
from tests.each import each


@given(number=st.integers(0, 2**32))
@hypothesis.settings(max_examples=120)
def test_random_maps_equal_e3nn(twins: Any, number: int) -> None:
    dice = random.Random(number)
    irreps_in = twins.irreps(dice, lmax=1, high=4)
    irreps_out = twins.irreps(dice, lmax=1, high=4)
    axes = dice.choice([{}, {}, {"f_in": 3, "f_out": 2}, {"f_in": 1, "f_out": 4}])
    kwargs: dict[str, Any] = {
        "path_normalization": dice.choice(["element", "path"]),
        "biases": dice.choice([True, False, "list"]),
        "shared_weights": (dice.random() < 0.5),
        "internal_weights": False,
        **axes,
    }
    if kwargs["biases"] == "list":
        kwargs["biases"] = [ir.is_scalar() and (dice.random() < 0.5) for _, ir in irreps_out]
    pairs = [(i, o) for i, (_, a) in enumerate(irreps_in) for o, (_, b) in enumerate(irreps_out) if a == b]
    if pairs and (dice.random() < 0.5):
        kwargs["instructions"] = dice.sample(pairs, dice.randint(1, len(pairs)))
    ours, flipped = Linear(irreps_in, irreps_out, **kwargs), Linear(irreps_in, irreps_out, layout="ir_mul", **kwargs)
    lead = (4,)
    own = () if kwargs["shared_weights"] else lead
    f_in, f_out = ((axes["f_in"],), (axes["f_out"],)) if axes else ((), ())
    generator = torch.Generator().manual_seed(dice.randint(0, 1000))
    inputs = {
        "x": torch.randn(*lead, *f_in, irreps_in.dim, generator=generator, dtype=torch.float64),
        "weight": torch.randn(*own, *f_in, *f_out, ours.weight_numel, generator=generator, dtype=torch.float64),
        "bias": torch.randn(*own, *f_out, ours.bias_numel, generator=generator, dtype=torch.float64),
    }
    try:
        theirs = twins.e3nn(o3.Linear, irreps_in, irreps_out, **kwargs)
    except (RuntimeError, ValueError):  # e3nn 0.6 cannot build maps without any path; ours gives zeros
        hypothesis.assume(False)
    assert (ours.weight_numel, ours.bias_numel) == (theirs.weight_numel, theirs.bias_numel)
    assert [tuple(i)[:3] for i in ours.instructions] == [tuple(i)[:3] for i in theirs.instructions]
    wanted = tuple(k for k, v in inputs.items() if v.numel())
    reference = twins.two_orders(theirs, inputs, wanted)
    depth = 4 * irreps_in.dim * 4
    twins.assert_close(twins.two_orders(ours, inputs, wanted), reference, depth)

    def through_ir_mul(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return to_mul_ir(flipped(to_ir_mul(x, irreps_in), w, b), irreps_out)

    twins.assert_close(twins.two_orders(through_ir_mul, inputs, wanted), reference, depth)


def test_zeros_where_no_path_arrives() -> None:
    layer = Linear("2x0e + 1x1o", "3x1e + 2x0e + 1x2e").double()
    y = layer(torch.randn(4, 5).double())
    assert torch.equal(y != 0, layer.output_mask.bool().expand(4, -1))
    assert layer.output_mask.tolist() == [0.0] * 9 + [1.0] * 2 + [0.0] * 5
    none = Linear("2x0e", "1x1o", biases=True)
    assert none(torch.randn(3, 2)).tolist() == [[0.0] * 3] * 3
    assert none.weight_numel == none.bias_numel == none.num_paths == 0


@each("irreps_in, irreps_out", [("", "2x0e"), ("2x0e", ""), ("", ""), ("0x0e + 1o", "0x1o + 0e")])
@each("lead", [(), (0,), (3,), (2, 3)])
def test_empty_irreps_and_batches(irreps_in: str, irreps_out: str, lead: tuple[int, ...]) -> None:
    layer = Linear(irreps_in, irreps_out)
    y = layer(torch.randn(*lead, layer.irreps_in.dim))
    assert y.shape == (*lead, layer.irreps_out.dim)
    assert not y.any()


def test_bias_is_added_to_its_group_only() -> None:
    layer = Linear("1x0e + 1x1o", "2x0e + 1x1o + 3x0e", biases=[False, False, True])
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert layer(torch.zeros(4)).tolist() == [0.0] * 5 + [1.0, 2.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_every_dtype(dtype: torch.dtype) -> None:
    layer = Linear("4x0e + 4x1o", "3x0e + 2x1o", biases=True).to(dtype)
    exact = Linear("4x0e + 4x1o", "3x0e + 2x1o", biases=True).double()
    exact.load_state_dict({k: v.double() for k, v in layer.state_dict().items()})
    x = torch.randn(5, 16).to(dtype)
    y, reference = layer(x).detach(), exact(x.double()).detach()
    assert y.dtype == dtype
    limit = 16 * torch.finfo(dtype).eps * float(reference.abs().max())
    assert float((y.double() - reference).abs().max()) <= limit


@pytest.mark.parametrize("frozen", [(), (0,), (1,), (0, 2)])
def test_derivatives(frozen: tuple[int, ...]) -> None:
    layer = Linear("2x0e + 2x1o", "1x0e + 1x1o", biases=True, internal_weights=False)
    inputs = [torch.randn(2, 8).double(), torch.randn(4).double(), torch.randn(1).double()]
    for number, value in enumerate(inputs):
        value.requires_grad_(number not in frozen)
    assert check_derivatives(layer, inputs, order=3).ok


@pytest.mark.kernels
def test_weight_views_and_repr() -> None:
    layer = Linear("2x0e + 3x1o", "4x0e + 1x1o", f_in=2, f_out=3, biases=True)
    views = list(layer.weight_views(yield_instruction=True))
    assert [(n, tuple(v.shape)) for n, _, v in views] == [(0, (2, 3, 2, 4)), (1, (2, 3, 3, 1))]
    views[1][2].data.zero_()
    assert torch.equal(layer.weight[..., 8:], torch.zeros(2, 3, 3))
    assert layer.weight[..., :8].abs().min() > 0
    assert repr(layer) == "Linear(2x0e+3x1o -> 4x0e+1x1o | 2 paths | 11 weights | 4 biases | mul_ir, backend auto)"
    assert layer.selected_backend() == "torch"
    assert "torch.matmul" in layer.explain()


def test_the_lengths_of_channel_axes_are_read_from_e3nns_weight() -> None:
    theirs = o3.Linear("2x0e + 3x1o", "4x0e + 1o", f_in=2, f_out=3, biases=True)
    ours = Linear.from_e3nn(theirs)
    assert (ours.f_in, ours.f_out) == (2, 3)
    x = torch.randn(5, 2, 11)
    torch.testing.assert_close(ours(x), theirs(x))
    with pytest.raises(ConfigError, match="must have a weight of its own"):
        Linear.from_e3nn(o3.Linear("2x0e", "3x0e", f_in=1, f_out=1, shared_weights=False))


class Counted(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("frozen", [True, False])
def test_one_product_for_all_samples(layout: str, frozen: bool) -> None:
    """With a matrix that needs no gradient, torch would make one for each sample, forward and backward."""
    layer = Linear("8x0e + 8x1o", "8x0e + 8x1o", layout=layout).requires_grad_(not frozen)
    x = torch.randn(5, 32, requires_grad=True)
    with Counted() as counted:
        torch.autograd.grad(layer(x).square().sum(), x)
    assert counted.calls["mm.default"] == 4
    assert "bmm.default" not in counted.calls


@pytest.mark.kernels
@pytest.mark.parametrize("layout", ["mul_ir", "ir_mul"])
@pytest.mark.parametrize("rows", [0, 1, 5, 40])
def test_generated_c_is_torch(layout: str, rows: int) -> None:
    """Value and derivatives of three orders; a group without paths, another with two, and odd numbers of channels."""
    made = [
        Linear("2x0e+3x1o+1x1o+17x2e", "37x0e+2x1o+18x2e+1x3e", biases=True, layout=layout, backend=name).double()
        for name in (None, "torch")
    ]
    made[1].load_state_dict(made[0].state_dict())
    assert made[0].selected_backend(dtype=torch.float64) == "cpu"
    x = torch.randn(rows, made[0].irreps_in.dim, dtype=torch.float64, requires_grad=True)
    found = []
    for layer in made:
        leaves = [x, layer.weight, layer.bias]
        listed = [layer(x)]
        for _ in range(3):
            first = torch.autograd.grad(listed[-1].pow(3).sum(), leaves, create_graph=True)
            listed += [*first, sum(g.square().sum() for g in first)]
        found.append(listed)
    for ours, theirs in zip(*found, strict=True):
        largest = float(theirs.detach().abs().amax()) if theirs.numel() else 0.0
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * largest)


@pytest.mark.parametrize(
    ("layer", "width"),
    [
        (lambda name: eq.Linear("4x0e", "2x0e", backend=name), 4),
        (lambda name: eq.nn.LowRankLinear("4x0e", "2x0e", 1, backend=name), 4),
        (lambda name: eq.nn.SpeciesLinear("4x0e", "2x0e", 2, backend=name), 4),
        (lambda name: eq.FullyConnectedTensorProduct("200x0e", "1x0e", "200x0e", backend=name), 200),  # dense as well
    ],
)
def test_a_named_backend_that_cannot_take_the_tensors_is_refused(
    layer: Any, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eqlayers_kernels.triton.availability.interpreted", lambda: False)
    x = torch.randn(3, width)
    more = {"SpeciesLinear": [torch.tensor([0, 1, 1])], "FullyConnectedTensorProduct": [torch.randn(3, 1)]}
    named = layer("triton")
    others = more.get(type(named).__name__, [])
    with pytest.raises(BackendError, match="'triton' must"):
        named(x, *others)
    layer("torch")(x, *others)
    layer("sparse")(x, *others)
    if type(named).__name__ == "Linear":
        assert "was named and refuses" in named.explain()
        with pytest.raises(BackendError, match="'triton' must"):
            named.selected_backend()


@pytest.mark.kernels
def test_wide_maps_are_one_call() -> None:
    wide, x = Linear("300x0e + 2x1o", "290x0e + 2x1o"), torch.randn(50, 306)
    assert wide.whole_call(torch.float32, torch.device("cpu")) is not None
    want = x[:, :300].double() @ wide.weight[:-4].view(300, 290).double() / 300**0.5
    torch.testing.assert_close(wide(x)[:, :290], want.float())
