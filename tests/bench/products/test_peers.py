"""Other packages as peers: their order of weights and columns, their signs, their graphs, and what they refuse.

The fakes have the interfaces that the adapters use, on e3nn, each with another convention wherever there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers.algebra import wigner_3j
from eqlayers.bench.products import cuequivariance as cuequivariance_peer
from eqlayers.bench.products import openequivariance as openequivariance_peer
from eqlayers.bench.products.check import check
from eqlayers.bench.products.operands import DIRECTIONS, Columns, Operands, draw, layout_form
from eqlayers.bench.products.peers import PEERS, Refusal, build_peer, convolve, path_signs
from eqlayers.bench.products.problems import GraphSpec, Problem
from eqlayers.bench.products.suite import Case

SMALL = Problem("small", "uvu", "4x0e+4x1o", "0e+1o", "0e+1o")
ODD = Problem("odd", "uvu", "3x0o+5x1o+2x2e", "0e+1o", "0e+0o+1o+2e")
SHARED = Problem("shared", "uvw", "2x0e+3x1o", "2x0e+1x1o", "2x0e+2x1o", "shared")
PER_EDGE = Problem("per edge", "uvw", "2x0e+3x1o", "2x0e+1x1o", "2x0e+2x1o")
PAIRS = Problem("pairs", "uvu", "2x0e", "3x0e", "0e")
EVERY = (SMALL, ODD, SHARED, PER_EDGE)


def made(problem: Problem, operation: str, dtype: torch.dtype = torch.float32) -> tuple[Case, Operands]:
    case = Case("test", problem, operation, GraphSpec("g", 5, 23))
    return case, draw(problem, operation, case.graph, dtype, torch.device("cpu"))


def passes(name: str, problem: Problem, operation: str) -> bool:
    case, operands = made(problem, operation)
    verdicts = check(problem, operands, [build_peer(name, case, operands)], DIRECTIONS)
    return {verdict.status for verdict in verdicts.values()} == {"ok"}


def test_signs_of_other_coefficients() -> None:
    """One odd path with the other sign; other numbers are refused."""
    signs = path_signs(SMALL, lambda *ls: -3 * wigner_3j(*ls) if ls == (1, 0, 1) else wigner_3j(*ls))
    assert signs == [1.0, 1.0, -1.0, 1.0]
    with pytest.raises(Refusal, match=r"coefficients of \(1, 1, 0\) are not e3nn's"):
        path_signs(SMALL, lambda *ls: np.roll(wigner_3j(*ls), 1, 0) if ls == (1, 1, 0) else wigner_3j(*ls))


def other_sign(degree: int) -> float:
    """The fakes' coefficients of paths into vectors have the other sign."""
    return -1.0 if degree == 1 else 1.0


# ---- cuEquivariance ------------------------------------------------------------------------------------------------


def fake_layer(
    in1: o3.Irreps, in2: o3.Irreps, out: list[o3.Irrep] | o3.Irreps, *, shared_weights: bool, **options: Any
) -> Any:
    """Channels innermost, one row of shared weights, sorted outputs and weights, the edges inside its polynomial."""
    if isinstance(out, o3.Irreps):
        problem = Problem("theirs", "uvw", str(in1), str(in2), str(out))
        instructions, signs = problem.instructions, [other_sign(out[k].ir.l) for _, _, k, *_ in problem.instructions]
        outputs = out
    else:
        problem = Problem("theirs", "uvu", str(in1), str(in2), "+".join(f"1x{ir}" for ir in out))
        paths = [(in1[i].mul, problem.irreps_out[k].ir, (i, j)) for i, j, k, *_ in problem.instructions]
        paths.sort(key=lambda path: (path[1].l, -path[1].p * (-1) ** path[1].l))
        outputs = o3.Irreps([(mul, ir) for mul, ir, _ in paths])
        instructions = [(i, j, k, "uvu", True) for k, (_, _, (i, j)) in enumerate(paths)]
        signs = [other_sign(ir.l) for _, ir, _ in paths]
    inner = o3.TensorProduct(in1, in2, outputs, instructions, shared_weights=shared_weights, internal_weights=False)
    sizes = [int(np.prod(ins.path_shape)) for ins in inner.instructions]
    flip = torch.from_numpy(np.repeat(signs, sizes)).float()
    orders = {key: inner_order(irreps) for key, irreps in {"x": in1, "y": in2, "z": outputs}.items()}

    def layer(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        assert w.ndim == 2
        w = (w[0] if shared_weights else w) * flip
        return orders["z"].into(inner(orders["x"].back(x), orders["y"].back(y), w))

    def polynomial(
        inputs: list[Tensor], input_indices: dict, output_shapes: dict, output_indices: dict
    ) -> list[Tensor]:
        w, x, y = inputs
        index = torch.stack([input_indices[1], output_indices[0]])
        return [convolve(layer, x, y, w, index, output_shapes[0].shape[0])]

    polynomial.method = "naive"  # type: ignore[attr-defined]
    layer.f = polynomial  # type: ignore[attr-defined]
    return layer


def inner_order(irreps: o3.Irreps) -> Columns:
    """Columns with the channels innermost."""
    return layout_form(SimpleNamespace(irreps_in1=irreps, irreps_in2=irreps, irreps_out=irreps), "ir_mul")["x"]


@pytest.fixture
def fake_cuequivariance(monkeypatch: pytest.MonkeyPatch) -> None:
    cue = SimpleNamespace(
        O3=None,
        ir_mul="ir_mul",
        Irreps=lambda group, text: o3.Irreps(text),
        SO3=lambda l: l,
        clebsch_gordan=lambda *ls: [wigner_3j(*ls) * other_sign(ls[2])],
    )
    cuet = SimpleNamespace(ChannelWiseTensorProduct=fake_layer, FullyConnectedTensorProduct=fake_layer)
    monkeypatch.setattr(cuequivariance_peer, "import_module", lambda name: cuet if name.endswith("torch") else cue)
    monkeypatch.setattr("eqlayers.bench.products.peers.find_spec", lambda name: name)


@pytest.mark.usefixtures("fake_cuequivariance")
@pytest.mark.parametrize("operation", ["product", "conv"])
@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: problem.name)
def test_cuequivariance_is_compared_rightly(problem: Problem, operation: str) -> None:
    assert passes("cuequivariance", problem, operation)


@pytest.mark.usefixtures("fake_cuequivariance")
def test_what_cuequivariance_refuses() -> None:
    with pytest.raises(Refusal, match="an output for every pair of channels"):
        build_peer("cuequivariance", *made(PAIRS, "product"))
    case, _ = made(SMALL, "product")
    elsewhere = SimpleNamespace(values={"x": SimpleNamespace(device=torch.device("cuda"))})
    with pytest.raises(Refusal, match="cuequivariance_ops_torch, its kernels, are not installed"):
        cuequivariance_peer.build_cuequivariance(case, elsewhere)


# ---- OpenEquivariance ----------------------------------------------------------------------------------------------


class FakeProduct:
    """Weights in reversed order, and a choice of layouts."""

    def __init__(self, config: SimpleNamespace) -> None:
        self.config = config
        self.inner = o3.TensorProduct(
            *config.irreps, config.instructions, shared_weights=config.shared_weights, internal_weights=False
        )
        signs = [other_sign(self.inner.irreps_out[ins.i_out].ir.l) for ins in self.inner.instructions]
        sizes = [int(np.prod(ins.path_shape)) for ins in self.inner.instructions]
        self.flip = torch.from_numpy(np.repeat(signs, sizes)).float()
        irreps = (self.inner.irreps_in1, self.inner.irreps_in2, self.inner.irreps_out)
        innermost = config.layout == "ir_mul"
        self.orders = [inner_order(part) if innermost else Columns() for part in irreps]

    def reorder_weights_from_e3nn(self, weights: Tensor, has_batch_dim: bool = True) -> Tensor:
        assert weights.ndim == 2 - self.config.shared_weights
        return weights.flip(-1)

    def __call__(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        z = self.inner(self.orders[0].back(x), self.orders[1].back(y), w.flip(-1) * self.flip)
        return self.orders[2].into(z)


class FakeConv(FakeProduct):
    """Rows receive and columns send; the sorted variant wants row-major edges and a permutation to column-major."""

    def __init__(self, config: SimpleNamespace, *, deterministic: bool = False) -> None:
        super().__init__(config)
        self.deterministic = deterministic

    def __call__(
        self, x: Tensor, y: Tensor, w: Tensor, rows: Tensor, cols: Tensor, by_sender: Tensor | None = None
    ) -> Tensor:
        assert rows.is_contiguous()
        assert cols.is_contiguous()
        assert (by_sender is not None) == self.deterministic
        if by_sender is not None:
            for first, second in ((rows, cols), (cols[by_sender], rows[by_sender])):
                assert bool(((first * len(x) + second).diff() >= 0).all())
        return convolve(super().__call__, x, y, w, torch.stack([cols, rows]), len(x))


@pytest.fixture
def fake_openequivariance(monkeypatch: pytest.MonkeyPatch) -> None:
    def problem(in1: str, in2: str, out: str, instructions: list[Any], layout: str = "mul_ir", **options: Any) -> Any:
        assert not options["internal_weights"]
        assert options["irrep_dtype"] is options["weight_dtype"] is np.float32
        irreps = (in1, in2, out)
        shared = options["shared_weights"]
        return SimpleNamespace(irreps=irreps, instructions=instructions, layout=layout, shared_weights=shared)

    oeq = SimpleNamespace(TPProblem=problem, TensorProduct=FakeProduct, TensorProductConv=FakeConv)
    lite = SimpleNamespace(wigner_3j=lambda *ls: wigner_3j(*ls) * other_sign(ls[2]))
    monkeypatch.setattr(openequivariance_peer, "import_module", lambda name: lite if "." in name else oeq)
    monkeypatch.setattr(openequivariance_peer, "DEVICE", "cpu")
    monkeypatch.setattr("eqlayers.bench.products.peers.find_spec", lambda name: name)


@pytest.mark.usefixtures("fake_openequivariance")
@pytest.mark.parametrize(
    ("name", "problem", "operation"),
    [
        *(("openequivariance", problem, operation) for problem in EVERY for operation in ("product", "conv")),
        *(("openequivariance-sorted", problem, "conv") for problem in (SMALL, ODD, PER_EDGE)),
        *(
            ("openequivariance-ir_mul", problem, operation)
            for problem in (SMALL, ODD)
            for operation in ("product", "conv")
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_openequivariance_is_compared_rightly(name: str, problem: Problem, operation: str) -> None:
    assert passes(name, problem, operation)


@pytest.mark.usefixtures("fake_openequivariance")
@pytest.mark.parametrize(
    ("name", "problem", "operation", "dtype", "reason"),
    [
        ("openequivariance", SMALL, "conv", torch.bfloat16, "float32 and float64"),
        ("openequivariance-sorted", SMALL, "product", torch.float32, "one way of adding up"),
        ("openequivariance-sorted", SHARED, "conv", torch.float32, "no shared weights"),
        ("openequivariance-ir_mul", PER_EDGE, "product", torch.float32, "the layout mul_ir"),
    ],
)
def test_what_openequivariance_refuses(
    name: str, problem: Problem, operation: str, dtype: torch.dtype, reason: str
) -> None:
    with pytest.raises(Refusal, match=reason):
        build_peer(name, *made(problem, operation, dtype))


def test_peers_of_gpus_refuse_a_cpu() -> None:
    build: Callable[..., object] = PEERS["openequivariance"].build
    with pytest.raises(Refusal, match="GPUs only"):
        build(*made(SMALL, "product"))
    with pytest.raises(Refusal, match="only gradients of convolutions on GPUs"):
        build_peer("eqlayers-unordered", *made(SMALL, "conv"))
