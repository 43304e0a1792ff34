"""Random products and linear maps beside their e3nn twins, and comparisons of values and of two derivatives."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import pytest
import torch
from e3nn import o3
from hypothesis.internal.conjecture import providers
from torch import Tensor

from eqlayers.irreps.instructions import MODES
from tests.cases import default_dtype

Dice = random.Random  # seeded by hypothesis: evenly spread, where its own draws crowd around empty and equal cases
EPS = torch.finfo(torch.float64).eps
PHASES = (hypothesis.Phase.generate, hypothesis.Phase.shrink)  # explaining traces every line, which is slow
SETTINGS: dict[str, Any] = {"derandomize": True, "database": None, "deadline": None, "phases": PHASES}
hypothesis.settings.register_profile("eqlayers", max_examples=25, **SETTINGS)
hypothesis.settings.load_profile("eqlayers")
# By default examples depend on the constants in all modules that a run has imported: each edit would draw others, and
# compile other kernels. To collect the constants takes seconds. Releases without this function draw no constants.
if hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = lambda: providers._local_constants


def e3nn(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An e3nn module with float64 constants and weights."""
    with default_dtype(torch.float64):
        return kind(*args, **kwargs)


def bound(reference: Tensor, depth: int) -> float:
    """Two sums of ``depth`` terms in different orders differ by a few roundings per term."""
    size = max(1.0, float(reference.abs().max())) if reference.numel() else 1.0
    return 8 * EPS * (depth + 8) * size


def assert_close(ours: dict[str, Tensor], theirs: dict[str, Tensor], depth: int) -> None:
    assert ours.keys() == theirs.keys()
    for name, reference in theirs.items():
        assert ours[name].shape == reference.shape, name
        assert ours[name].dtype == reference.dtype, name
        worst = float((ours[name] - reference).abs().max()) if reference.numel() else 0.0
        assert worst <= bound(reference, depth), f"{name}: {worst} > {bound(reference, depth)}"


def two_orders(fn: Callable[..., Tensor], inputs: dict[str, Tensor], wanted: Sequence[str]) -> dict[str, Tensor]:
    """Value, gradients, and derivatives of the gradients, with respect to the named inputs and to the cotangent."""
    generator = torch.Generator().manual_seed(7)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, dtype=like.dtype)

    live = {k: v.detach().clone().requires_grad_(k in wanted) for k, v in inputs.items()}
    value = fn(*live.values())
    out = {"value": value.detach()}
    if not wanted or not value.requires_grad:
        return out
    cotangent = draw(value).requires_grad_(True)
    sources = [live[k] for k in wanted]
    first = torch.autograd.grad(value, sources, cotangent, create_graph=True, materialize_grads=True)
    out.update({f"d/d{k}": g.detach() for k, g in zip(wanted, first, strict=True)})
    total = torch.stack([(g * draw(g)).sum() for g in first]).sum()
    if total.requires_grad:
        second = torch.autograd.grad(total, [*sources, cotangent], materialize_grads=True)
        out.update({f"d2/d{k}": g for k, g in zip([*wanted, "cotangent"], second, strict=True)})
    return out


@dataclass
class Product:
    """Arguments of a tensor product, and inputs that fit it."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Tensor] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        return self.args[0].dim * self.args[1].dim * max(1, len(self.args[3]))


def irreps(dice: Dice, low: int = 1, high: int = 3, lmax: int = 2, mul: int = 3, least: int = 0) -> o3.Irreps:
    """Irreps with repeated groups, and with multiplicities from ``least``."""
    groups = range(dice.randint(low, high))
    return o3.Irreps([(dice.randint(least, mul), (dice.randint(0, lmax), dice.choice([1, -1]))) for _ in groups])


def _path(dice: Dice, in1: o3.Irreps, in2: o3.Irreps) -> tuple[int, int, str, bool, int, o3.Irrep] | None:
    """One path that obeys the rules of its mode: (i_in1, i_in2, mode, has_weight, mul_out, ir_out)."""
    mode = MODES[dice.choice(sorted(MODES))]
    equal = mode.pairs or mode.first == mode.second
    pairs = [(i, j) for i in range(len(in1)) for j in range(len(in2)) if not equal or in1[i].mul == in2[j].mul]
    if not pairs:
        return None
    i, j = dice.choice(pairs)
    has_weight = mode.must_weight or (dice.random() < 0.5)
    extents = mode.extents(in1[i].mul, in2[j].mul, dice.randint(1, 3) if has_weight else 1)
    mul_out = 1
    for letter in mode.out:
        mul_out *= extents[letter]
    return i, j, mode.name, has_weight, mul_out, dice.choice(list(in1[i].ir * in2[j].ir))


def instructions(dice: Dice, in1: o3.Irreps, in2: o3.Irreps, paths: int = 5) -> tuple[o3.Irreps, list[tuple[Any, ...]]]:
    """Up to ``paths`` paths in mixed modes, with output groups shared or not, and groups that nothing reaches."""
    drawn = [p for p in (_path(dice, in1, in2) for _ in range(dice.randint(1, paths))) if p is not None]
    groups: list[tuple[int, o3.Irrep] | None] = []
    targets = []
    for _, _, _, _, mul, ir in drawn:
        if (mul, ir) in groups and (dice.random() < 0.5):
            targets.append(groups.index((mul, ir)))
        else:
            targets.append(len(groups))
            groups.append((mul, ir))
    order: list[int | None] = dice.sample(range(len(groups)), len(groups))
    for _ in range(dice.randint(0, 2)):
        order.insert(dice.randint(0, len(order)), None)  # an irrep that no path reaches
    out = o3.Irreps([groups[k] if k is not None else (2, (1, -1)) for k in order])
    weights = [dice.choice([1.0, 1.0, 0.25, 2.0, 0.0]) for _ in drawn]
    rows = [(p[0], p[1], order.index(t), p[2], p[3], w) for p, t, w in zip(drawn, targets, weights, strict=True)]
    return out, rows


LEADS = [
    ((3,), (3,), (3,)),
    ((), (), (1,)),
    ((0,), (0,), (0,)),
    ((2, 1), (3,), (2, 3)),
    ((1,), (4,), (4,)),
    ((), (2,), (1,)),
]


def product(dice: Dice) -> Product:
    """A random product in mixed modes, with options, weights of any ownership, and inputs of broadcast shapes."""
    in1, in2 = irreps(dice), irreps(dice)
    out, rows = instructions(dice, in1, in2)
    kwargs: dict[str, Any] = {
        "irrep_normalization": dice.choice(["component", "norm", "none", None]),
        "path_normalization": dice.choice(["element", "path", "none", None]),
        "shared_weights": (dice.random() < 0.5),
        "internal_weights": False,
    }
    for name, owner in (("in1_var", in1), ("in2_var", in2), ("out_var", out)):
        if dice.random() < 0.5:
            kwargs[name] = [dice.choice([0.5, 1.0, 3.0]) for _ in owner]
    numel = sum(
        torch.Size(MODES[r[3]].weight_shape(in1[r[0]].mul, in2[r[1]].mul, out[r[2]].mul)).numel() for r in rows if r[4]
    )
    lead = dice.choice(LEADS)
    generator = torch.Generator().manual_seed(dice.randint(0, 2**16))
    shapes = {"x": (*lead[0], in1.dim), "y": (*lead[1], in2.dim)}
    shapes["weight"] = (numel,) if kwargs["shared_weights"] else (*lead[2], numel)
    inputs = {k: torch.randn(s, generator=generator, dtype=torch.float64) for k, s in shapes.items()}
    wanted = dice.choice([("x", "y", "weight"), ("x", "y", "weight"), ("x",), ("y",), ("weight",), ("x", "y")])
    return Product(
        (in1, in2, out, rows), kwargs, inputs, wanted if numel else tuple(w for w in wanted if w != "weight")
    )


class Twins:
    """Functions that build and compare a layer with its e3nn twin."""

    default_dtype = staticmethod(default_dtype)
    e3nn = staticmethod(e3nn)
    bound = staticmethod(bound)
    assert_close = staticmethod(assert_close)
    two_orders = staticmethod(two_orders)
    irreps = staticmethod(irreps)
    product = staticmethod(product)


@pytest.fixture(scope="session")
def twins() -> type[Twins]:
    """The class above, as the fixture of the folders that compare with e3nn."""
    return Twins
