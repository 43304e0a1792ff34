"""OpenEquivariance as a peer: its order of weights, both layouts, and both ways of adding up edges.

A fake has the interface that the adapter uses, on e3nn, with another convention wherever there is one.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers.bench.cases import Refusal
from eqlayers.bench.products import peers as openequivariance_peer
from eqlayers.bench.products.implementation import convolve
from eqlayers.bench.products.operands import Columns
from eqlayers.bench.products.peers import build_peer
from eqlayers.bench.products.problems import Problem
from eqlayers.irreps.algebra import wigner_3j
from tests.bench.products.test_products import (
    EVERY,
    ODD,
    PER_EDGE,
    SHARED,
    SMALL,
    inner_order,
    made,
    other_sign,
    passes,
)


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
    monkeypatch.setattr(openequivariance_peer, "OEQ_DEVICE", "cpu")
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
