"""Allegro's contraction as a tensor product, its networks, and the modifier."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
from allegro.nn._strided import Contracter
from e3nn.o3 import Irreps
from nequip.model.modify_utils import get_all_modifiers, modify
from nequip.utils.dtype import torch_default_dtype
from torch import Tensor

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.contracter import AcceleratedContracter
from tests.integrations import guests

ALL = "1x0e + 1x1o + 1x2e"
#: irreps of both inputs and of the result, and further arguments
FORMS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "many paths": (ALL, ALL, "1x0e + 1x0o + 1x1o + 1x1e + 1x2e", {}),
    "paths alone": (ALL, ALL, ALL, {"path_channel_coupling": False}),
    "to scalars": (ALL, ALL, "1x0e", {}),
    "to scalars, paths alone": (ALL, ALL, "1x0e", {"path_channel_coupling": False}),
    "one path": ("1x1o", "1x1o", "1x1e", {}),
    "one path, alone": ("1x1o", "1x1o", "1x1e", {"path_channel_coupling": False}),
    "one path to scalars": ("1x2e", "1x2e", "1x0e", {}),
    "named paths": (ALL, "1x1o", "1x1o + 1x0e", {"instructions": [(0, 0, 0), (1, 0, 1)]}),
    "plain symbols": (ALL, ALL, ALL, {"irrep_normalization": None}),
}


def contracter(form: str = "many paths", channels: int = 5, dtype: torch.dtype = torch.float64) -> Any:
    first, second, out, options = FORMS[form]
    torch.manual_seed(3)
    with torch_default_dtype(dtype):
        return Contracter(Irreps(first), Irreps(second), Irreps(out), mul=channels, **options)


def operands(module: Any, edges: int = 7, atoms: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)

    def draw(rows: int, width: int) -> Tensor:
        return torch.randn(rows, module.mul, width, generator=generator, dtype=torch.float64).to(module.w3j.dtype)

    index = torch.randint(0, atoms, (edges,), generator=generator)
    return draw(edges, module.irreps_in1.dim), draw(atoms, module.irreps_in2.dim), index


def replaced(module: Any) -> Any:
    (row,) = accelerate(holder := torch.nn.ModuleList([module])).replaced
    assert (row.replacement, row.target) == ("AcceleratedContracter", "contraction")
    assert 0 < row.error <= 1, "value, first and second derivatives within rounding"
    return holder[0]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_form_is_one_product(form: str, dtype: torch.dtype) -> None:
    module = contracter(form, dtype=dtype)
    arguments = operands(module)
    expected = module(*arguments)
    fast = replaced(module)
    assert isinstance(fast, AcceleratedContracter)
    assert fast.weights is module.weights
    result = fast(*arguments)
    assert result.shape == expected.shape
    torch.testing.assert_close(result, expected)
    flat = [t.flatten(1) for t in arguments[:2]]
    torch.testing.assert_close(fast(*flat, arguments[2]), expected)


def test_third_derivatives() -> None:
    fast = replaced(contracter(channels=2))
    x, y, index = operands(fast, edges=2, atoms=2)
    inputs = (x.requires_grad_(), y.requires_grad_(), fast.weights)

    def first(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        z = torch.func.functional_call(fast, {"weights": w}, (x, y, index))
        return torch.autograd.grad(z.square().sum(), x, create_graph=True)[0]

    assert torch.autograd.gradcheck(first, inputs)
    assert torch.autograd.gradgradcheck(first, inputs)


def test_no_edges() -> None:
    fast = replaced(contracter())
    x, y, _ = operands(fast, edges=0)
    result = fast(x.requires_grad_(), y, torch.zeros(0, dtype=torch.int64))
    assert result.shape == (0, 5, fast.irreps_out.dim)
    result.sum().backward()
    assert not fast.weights.grad.any()


@pytest.mark.kernels
def test_nothing_of_every_pair_is_kept() -> None:
    (row,) = accelerate(torch.nn.ModuleList([contracter(channels=8)])).replaced
    pairs = 8 * 9 * 9 * 8  # bytes of the outer product of an edge
    assert row.saved_bytes > pairs / 2


def test_compiled() -> None:
    fast = replaced(contracter())
    arguments = operands(fast)
    torch.testing.assert_close(torch.compile(fast, fullgraph=True, backend="aot_eager")(*arguments), fast(*arguments))


def test_state_and_the_way_back() -> None:
    module = contracter()
    arguments = operands(module)
    expected, state = module(*arguments), {key: value.clone() for key, value in module.state_dict().items()}
    holder = torch.nn.ModuleList([module])
    accelerate(holder)
    assert list(holder[0].state_dict()) == list(state) == ["weights", "w3j"]
    for other in (copy.deepcopy(holder), pickle.loads(pickle.dumps(holder))):
        assert isinstance(other[0], AcceleratedContracter)
        torch.testing.assert_close(other[0](*arguments), expected)
        assert isinstance(deaccelerate(other)[0], Contracter)
    with torch.no_grad():
        holder[0].weights.mul_(2)
    deaccelerate(holder)
    assert holder[0] is module
    torch.testing.assert_close(module(*arguments), 2 * expected)
    module.load_state_dict(state)
    torch.testing.assert_close(module(*arguments), expected)


def test_signs_of_another_release_are_followed() -> None:
    plain, fast = contracter(), replaced(contracter())
    state = copy.deepcopy(plain.state_dict())
    state["w3j"][1] *= -1
    plain.load_state_dict(state)
    before = fast(*operands(fast))
    fast.load_state_dict(state)
    torch.testing.assert_close(fast(*operands(fast)), plain(*operands(plain)))
    assert not torch.allclose(fast(*operands(fast)), before)
    state["w3j"][1] += 0.1
    with pytest.raises(RuntimeError, match=r"w3j must hold Wigner 3j symbols times .*, got others for path 1"):
        fast.load_state_dict(state)


def test_what_is_left() -> None:
    class Scaled(Contracter):
        def forward(self, x1: Tensor, x2: Tensor, idxs: Tensor) -> Tensor:
            return 2 * super().forward(x1, x2, idxs)

    other, more = contracter(), contracter()
    other.w3j[0] += 0.1
    more.register_buffer("scale", torch.ones(1))
    scaled = Scaled(Irreps(ALL), Irreps(ALL), Irreps(ALL), mul=2)
    report = accelerate(torch.nn.ModuleList([other, more, scaled]))
    assert not report.replaced
    reasons = [row.reason for row in report.skipped]
    assert "w3j must hold Wigner 3j symbols" in reasons[0]
    assert reasons[1] == "does not hold what Allegro's contraction holds: scale"
    assert reasons[2] == "is of a class Scaled that defines forward beside what Allegro's does"


def test_rounded_coefficients_are_told() -> None:
    """A network that was made in float32 and moved to float64 keeps the rounding of its coefficients."""
    (row,) = accelerate(torch.nn.ModuleList([contracter(dtype=torch.float32).double()])).replaced
    assert "keep the rounding of float32" in row.note
    assert not math.isnan(row.error)


def test_the_modifier() -> None:
    subject = guests.allegro(channels=4, scalars=8, sizes=(7, 1))
    network = subject.make(torch.float32)
    assert "enable_eqlayers" in get_all_modifiers(network)
    errors = guests.compare(subject, lambda one: modify(one, [{"modifier": "enable_eqlayers"}]))
    assert all(share <= 1 for share in errors["of the bound"].values()), errors
    modify(network, [{"modifier": "enable_eqlayers"}])
    assert sum(isinstance(module, AcceleratedContracter) for module in network.modules()) == 2
    assert "eqlayers.nn" in network.metadata["nequip_custom_ops_libs"].split()
